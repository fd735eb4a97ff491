"""A trained reward model as a part of a reward: a dialogue becomes one number.

@reward(0.5, kind="judge")
def liked(self, trajectory):
    return reward_model("helpful")(trajectory)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal

from renshu.chat import ChatFormat
from renshu.chat.encode import Encoder
from renshu.errors import ContextOverflow, DataError
from renshu.types import Message, Trajectory

Squash = Literal["none", "sigmoid"]
Judged = Trajectory | Sequence[Message] | str


@lru_cache(maxsize=8)
def reward_model(name: str, *, squash: Squash = "none", device: str = "auto") -> RewardModel:
    """The reward model of a folder (from the current one) or hub name; loaded once, however often asked for.

    squash: `none` gives the model's own number, which has no bounds; `sigmoid` brings it into 0..1, as parts
    of a reward are by convention. device: `auto` is the first CUDA GPU if there is one, else the CPU. Raises
    ModelError for what is no sequence classifier with one label.
    """
    from renshu.models.classifier import load_classifier

    return RewardModel(*load_classifier(name, device), squash=squash)


class RewardModel:
    """A sequence classifier with its tokenizer, called with an episode, messages or plain text."""

    def __init__(self, model: Any, tokenizer: Any, *, squash: Squash = "none") -> None:
        self.model, self.squash = model, squash
        self.reader = RewardReader(tokenizer, context_of(model))

    def __call__(self, judged: Judged, tools: Sequence[Any] = ()) -> float:
        """The score of one. tools: what the agent could call, for the template (see `RewardReader.ids`)."""
        return self.scores([judged], tools)[0]

    def scores(self, judged: Sequence[Judged], tools: Sequence[Any] = ()) -> list[float]:
        """The scores of several, in one forward pass; they differ from those of one by rounding only.

        Raises ContextOverflow if one is longer than the model's context, DataError if one is empty.
        """
        import torch

        from renshu.models.classifier import scores

        rows = [self.reader.ids(one, tools) for one in judged]
        with torch.no_grad():
            raw = scores(self.model, rows).double()
        found: list[float] = (raw.sigmoid() if self.squash == "sigmoid" else raw).tolist()
        return found


def context_of(model: Any) -> int:
    """Tokens that a model can read; unbounded where its configuration names no number."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return sys.maxsize if limit is None else int(limit)


class RewardReader:
    """Dialogues and texts as the ids that a reward model reads, in training and in use alike.

    context: tokens that the model can read. What messages and texts hold never becomes a control token.
    """

    def __init__(self, tokenizer: Any, context: int, template: str | None = None) -> None:
        self.tokenizer, self.context, self.template = tokenizer, context, template

    def ids(self, judged: Judged, tools: Sequence[Any] = ()) -> list[int]:
        """Messages by the chat template; a text with the begin and end tokens of the tokenizer around it.

        tools: OpenAI schemas, or ToolSpecs as `Environment.tools()` gives them. Raises DataError if there is
        nothing to read, ContextOverflow if there is too much, TemplateError without a template.
        """
        if not isinstance(judged, str):
            messages = judged.messages if isinstance(judged, Trajectory) else judged
            if not messages:
                raise DataError("there is nothing to judge: the dialogue is empty")
            schemas = [tool if isinstance(tool, Mapping) else tool.schema for tool in tools]
            ids = self.chat.dialogue(messages, schemas)
        elif judged.strip():
            ids = self._text_ids(judged)
        else:
            raise DataError("there is nothing to judge: the text is empty")
        if len(ids) > self.context:
            raise ContextOverflow(
                f"{len(ids)} tokens are to be judged, and the reward model reads {self.context} at most"
            )
        return ids

    @cached_property
    def chat(self) -> ChatFormat:
        return ChatFormat(self.tokenizer, self.template)

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.tokenizer, filter(None, [self.tokenizer.eos_token]))

    def _text_ids(self, text: str) -> list[int]:
        """As TRL reads text pairs: the end token is put behind a text that does not end in it."""
        begin, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        before = [begin] if begin is not None and self.tokenizer.encode("")[:1] == [begin] else []
        said = text.removesuffix(self.tokenizer.eos_token or "")
        after = [] if end is None else [end]
        return [*before, *self._encoder.encode(self._encoder.guard(said)), *after]
