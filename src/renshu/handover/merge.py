"""`renshu merge`: the adapter of a run written into its base model, a folder that needs no adapter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from renshu.chat import ChatFormat
from renshu.envs import Interaction
from renshu.errors import ConfigError, ModelError
from renshu.models.adapters import has_adapter
from renshu.models.load import load, save
from renshu.models.merge import merge
from renshu.models.settings import Dtype, ModelSettings
from renshu.pipeline.agent import build_agent
from renshu.pipeline.finished import environment_for, find_target
from renshu.places import require_writable
from renshu.train.checkpoint import atomic_folder

PROBES = 8  # prompts of test tasks on which the merged model is compared


def merge_run(run: str | Path, out: str | Path, *, dtype: Dtype = "float32") -> Path:
    """Write the kept model of `run`, its adapter merged in `dtype`, into the new folder `out`.

    The folder reads back with the same template and the same ids of fixed dialogues. Raises ConfigError if
    `out` exists or the run has no adapter, ModelError if merging would lose what was trained.
    """
    out = Path(out)
    if out.exists():
        raise ConfigError(f"{out} exists: choose another folder with --out")
    require_writable(out, "--out")
    found = find_target(str(run))
    agent = build_agent(found.model.model_copy(update={"dtype": dtype}), found.base, found.weights)
    if not has_adapter(agent.loaded.model):
        raise ConfigError(f"{run} has no adapter: {found.model.name} is a whole model already")
    environment = environment_for(found, None)
    assert environment.tasks is not None
    openings = [Interaction(environment(), task) for task in environment.tasks.split("test")[:PROBES]]
    probes = [agent.chat.prompt(opening.messages, opening.schemas) for opening in openings]
    whole = replace(agent.loaded, model=merge(agent.loaded.model, probes))
    # The template of training, also where the recipe named another than the tokenizer's own.
    whole.tokenizer.chat_template = agent.chat.template.source
    with atomic_folder(out) as temporary:
        save(whole, temporary)
        _require_same_format(temporary, agent.chat)
    return out


def _require_same_format(folder: Path, trained: ChatFormat) -> None:
    again = load(ModelSettings(name=str(folder)))
    chat = ChatFormat(again.tokenizer, None, trained.thoughts, eos_ids=again.eos_ids)
    if chat.fingerprint != trained.fingerprint:
        raise ModelError(f"{folder}: read again, the template or token ids are not those trained with")
