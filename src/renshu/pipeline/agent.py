"""A model with all it takes to let it act: its chat format and an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from renshu.chat import ChatFormat
from renshu.engines import Engine
from renshu.engines.choose import AUTO, engine_for
from renshu.engines.settings import EngineSettings
from renshu.errors import ConfigError
from renshu.models import ModelSettings
from renshu.models.load import LoadedModel, load
from renshu.train.checkpoint import load_weights
from renshu.train.optimiser import trainable


@dataclass(frozen=True)
class Agent:
    """Training, evaluation and chat all use this one object, so that they cannot differ."""

    loaded: LoadedModel
    chat: ChatFormat
    engine: Engine


def build_agent(
    settings: ModelSettings,
    base: str | Path = ".",
    weights: Path | None = None,
    engine: EngineSettings = AUTO,
) -> Agent:
    """Load the model and what belongs to it. base: the folder that a relative template path starts from.

    weights: a checkpoint to put into the model. Raises ModelError, CheckpointError if the weights are of
    another model, TemplateError if the tokenizer has no chat template, or EngineError if the engine that is
    asked for cannot run the model.
    """
    loaded = load(settings)
    if weights is not None:
        load_weights(weights, trainable(loaded.model))
    chat = ChatFormat(
        loaded.tokenizer, _template(settings.template, Path(base)), settings.thoughts, eos_ids=loaded.eos_ids
    )
    return Agent(loaded, chat, engine_for(loaded.model, engine))


def _template(name: str, base: Path) -> str | None:
    if name in ("own", "fallback"):
        return None if name == "own" else name
    path = base / name
    if not path.is_file():
        raise ConfigError(f"model.template: {path}: no such file; expected own, fallback or a Jinja file")
    return path.read_text("utf-8")
