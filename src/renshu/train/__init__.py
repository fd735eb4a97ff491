"""The training loop, its optimiser, checkpoints and metrics."""

from renshu.train.batches import Batches
from renshu.train.loop import Trainer, train
from renshu.train.metrics import MetricsLog
from renshu.train.observe import Finding, Observer, Snapshot
from renshu.train.progress import ProgressBar

__all__ = [
    "Batches",
    "Finding",
    "MetricsLog",
    "Observer",
    "ProgressBar",
    "Snapshot",
    "Trainer",
    "train",
]
