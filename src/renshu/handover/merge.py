"""`renshu merge`: the adapter of a run written into its base model, for programs that know no adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from renshu.chat import ChatFormat
from renshu.envs import Environment, Interaction, demonstrations
from renshu.errors import ConfigError, ModelError, TemplateError
from renshu.handover import gguf_file
from renshu.handover.gguf_file import FileType, Spoken
from renshu.handover.gguf_tokens import vocabulary
from renshu.handover.ollama import FIXED, Dialogues, modelfile
from renshu.models import ModelSettings
from renshu.models.adapters import has_adapter
from renshu.models.load import LoadedModel, load, save
from renshu.models.merge import logprobs_on, merge, require_same, unmerged
from renshu.pipeline.agent import Agent, build_agent
from renshu.pipeline.finished import Target, environment_for, find_target
from renshu.places import require_writable
from renshu.train.checkpoint import atomic_folder
from renshu.types import Message

Form = Literal["hf", "gguf", "ollama"]
PROBES = 8  # test tasks whose dialogues the merged model is compared on
GGUF, MODELFILE = "model.gguf", "Modelfile"
NOT_ALONE = (
    "the chat template alone does not write these dialogues as training did: programs that render it must "
    "put tools, calls and answers into the messages as `renshu serve` does"
)


@dataclass(frozen=True)
class Written:
    """A folder with a merged model.

    gap: nats by which its log-probs differ on average from those of the model as trained.
    note: what whoever uses it must know, or None.
    """

    folder: Path
    gap: float
    note: str | None


@dataclass(frozen=True)
class Seen:
    """Dialogues of test tasks: as the environment's script plays them, or openings where it has none."""

    dialogues: tuple[tuple[Message, ...], ...]
    tools: tuple[dict[str, Any], ...]

    def openings(self, chat: ChatFormat) -> list[list[int]]:
        """The ids of the first prompt of each."""
        return [chat.prompt(messages[: turns(messages)[0]], self.tools) for messages in self.dialogues]

    def prompts(self, chat: ChatFormat) -> list[list[int]]:
        """The ids of all prompts."""
        ends = [(messages, end) for messages in self.dialogues for end in turns(messages)]
        return [chat.prompt(messages[:end], self.tools) for messages, end in ends]


def merge_run(run: str | Path, out: str | Path, *, to: Form = "hf", dtype: FileType = "float32") -> Written:
    """Write the kept model of `run`, its adapter merged if it has one, into the new folder `out`.

    to: `hf`, a folder as transformers reads it; `gguf`, with one file for llama.cpp; `ollama`, with a
    Modelfile beside that. dtype: of the weights written. What was written is read back, and must have the
    same log-probs, ids and template. Raises ConfigError if `out` exists, or if there is nothing to merge or
    to write anew, ModelError if what was trained would be lost, or if the model cannot be said in that form.
    """
    out = Path(out)
    if out.exists():
        raise ConfigError(f"{out} exists: choose another folder with --out")
    if to == "hf" and dtype == "q8_0":
        raise ConfigError("--dtype q8_0 is a type of GGUF files: add --to gguf or --to ollama")
    require_writable(out, "--out")
    found = find_target(str(run))
    agent = build_agent(_plain(found.model), found.base, found.weights)
    model = agent.loaded.model
    adapted = has_adapter(model)
    if to == "hf" and not adapted:
        raise ConfigError(f"{run} has no adapter: {found.model.name} is a whole model already")
    if found.recipe is None and not adapted:
        raise ConfigError(
            f"{run} is no run: what its training changed is not known, so no type can be judged"
        )
    if to != "hf":
        gguf_file.require_exportable(model.get_base_model() if adapted else model)
    seen = _seen(None if found.recipe and found.recipe.env is None else environment_for(found, None))
    spoken = _spoken(agent, seen) if to != "hf" else None
    commands = _modelfile(agent, seen, spoken) if spoken and to == "ollama" else None
    probes = seen.openings(agent.chat)
    merged = merge(model, probes) if adapted else unmerged(model, _untrained(found), probes)
    with atomic_folder(out) as folder:
        if spoken is None:
            again = _write_folder(folder, replace(agent.loaded, model=merged.model), agent.chat, dtype)
        else:
            gguf_file.write(folder / GGUF, merged.model, spoken, dtype, out.name)
            again = gguf_file.read_back(folder / GGUF, merged.model)
        if commands is not None:
            (folder / MODELFILE).write_text(commands, encoding="utf-8")
        written = logprobs_on(again, probes)
        require_same(written, merged.merged, merged.without)
    note = NOT_ALONE if commands is None and not template_suffices(agent.chat, seen) else None
    return Written(out, (written - merged.loaded).abs().mean().item(), note)


def _untrained(found: Target) -> Any:
    assert found.recipe is not None
    return load(_plain(found.recipe.model)).model


def _plain(settings: ModelSettings) -> ModelSettings:
    """As the weights were in training, but computed in their own type: mixed precision is none of theirs."""
    wide = {"dtype": "float32"} if settings.autocast != "none" else {}
    return settings.model_copy(update={"autocast": "none", "checkpointing": False, **wide})


def _seen(environment: type[Environment] | None) -> Seen:
    if environment is None:  # its agents ran elsewhere
        return Seen(FIXED, ())
    assert environment.tasks is not None
    tasks = environment.tasks.split("test")[:PROBES]
    if environment.has_script("solve"):
        played = demonstrations(environment, tasks, careful=1.0, seed=0)
        return Seen(tuple(one.messages for one in played), played[0].tools)
    openings = [Interaction(environment(), task) for task in tasks]
    return Seen(tuple(tuple(one.messages) for one in openings), tuple(openings[0].schemas))


def turns(messages: Sequence[Message]) -> list[int]:
    """Where the model's turns begin; behind the last message, if that is not the model's."""
    found = [place for place, message in enumerate(messages) if message.role == "assistant"]
    return found if messages[-1].role == "assistant" else [*found, len(messages)]


def template_suffices(chat: ChatFormat, seen: Seen) -> bool:
    """Whether the template writes every prompt as training did if any program gives it messages and tools."""
    for messages in seen.dialogues:
        given = [_given(message) for message in messages]
        for end in turns(messages):
            try:
                alone = chat.template.render(given[:end], seen.tools, prompt=True)
            except TemplateError:
                return False
            if alone != chat.text(messages[:end], seen.tools):
                return False
    return True


def _given(message: Message) -> dict[str, Any]:
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    return {"role": message.role, "content": message.content, **({"tool_calls": calls} if calls else {})}


def _spoken(agent: Agent, seen: Seen) -> Spoken:
    loaded, chat = agent.loaded, agent.chat
    rows = loaded.model.get_input_embeddings().num_embeddings
    found = vocabulary(loaded.tokenizer, rows, seen.prompts(chat))
    end = loaded.tokenizer.convert_tokens_to_ids(chat.behaviour.turn_end)
    return Spoken(found, chat.template.source, end)


def _modelfile(agent: Agent, seen: Seen, spoken: Spoken) -> str:
    dialogues = Dialogues(agent.chat, spoken.vocabulary.adds_bos)
    return modelfile(dialogues, seen.tools, seen.dialogues, GGUF, agent.engine.context)


def _write_folder(folder: Path, whole: LoadedModel, trained: ChatFormat, dtype: FileType) -> Any:
    """Write the folder and return the model that is read from it."""
    whole.model.to(getattr(torch, dtype))
    # The template of training, also where the recipe named another than the tokenizer's own.
    whole.tokenizer.chat_template = trained.template.source
    save(whole, folder)
    again = load(ModelSettings(name=str(folder), dtype="float32"))
    chat = ChatFormat(again.tokenizer, None, trained.thoughts, eos_ids=again.eos_ids)
    if chat.fingerprint != trained.fingerprint:
        raise ModelError(f"{folder}: read again, the template or token ids are not those trained with")
    return again.model
