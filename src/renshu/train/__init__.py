"""The training loop, its optimiser, checkpoints and metrics."""

from renshu.train.batches import SftBatches
from renshu.train.loop import Trainer, train
from renshu.train.metrics import MetricsLog
from renshu.train.observe import Finding, Observer, Snapshot
from renshu.train.progress import ProgressBar

__all__ = [
    "Finding",
    "MetricsLog",
    "Observer",
    "ProgressBar",
    "SftBatches",
    "Snapshot",
    "Trainer",
    "train",
]
