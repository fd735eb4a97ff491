"""A byte-level ChatML format, a scripted engine that speaks text, and a small environment to fail in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from renshu.chat import ChatFormat
from renshu.engines import Sampling
from renshu.engines.scripted import ScriptedEngine
from renshu.envs import Environment, Tasks, reward, success
from renshu.errors import InfrastructureError
from renshu.tools import tool
from renshu.types import Task, Trajectory
from tiny_models import byte_tokenizer, qwen_template

CHAT = ChatFormat(byte_tokenizer(qwen_template()))
STOP = CHAT.tokenizer.convert_tokens_to_ids("<|im_end|>")


def ids_of(text: str) -> list[int]:
    """A reply as the model samples it, its stop token included."""
    return [*CHAT.tokenizer.encode(text, add_special_tokens=False), STOP]


def text_of(ids: Iterable[int]) -> str:
    return CHAT.tokenizer.decode(list(ids))


def engine(replies: Iterable[str] | Callable[[str], str], context: int = 8192) -> ScriptedEngine:
    """Says the replies in turn, or what a function makes of the text so far."""
    if callable(replies):
        return ScriptedEngine(lambda ids: ids_of(replies(text_of(ids))), context=context)
    return ScriptedEngine([ids_of(reply) for reply in replies], context=context)


def sampling(max_tokens: int = 2000) -> Sampling:
    return Sampling(max_tokens=max_tokens, stop_ids=CHAT.stop_ids)


def call_text(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Shelf(Environment):
    """Fetch the red box; everything that can go wrong has a tool."""

    system = "Fetch."
    max_turns = 5
    tasks = Tasks(train=[Task(f"shelf/train/{i}", {"box": "red"}) for i in range(4)])

    def setup(self, task: Task) -> str:
        self.fetched: list[str] = []
        return f"Fetch the {task['box']} box."

    @tool
    def fetch(self, box: str) -> str:
        """Fetch a box."""
        self.fetched.append(box)
        return f"here is {box}"

    @tool
    def read(self, pages: int) -> str:
        """Read a manual."""
        return "word " * pages

    @tool
    def nap(self, seconds: float) -> str:
        """Wait."""
        time.sleep(seconds)
        return "awake"

    @tool
    def crash(self) -> str:
        """Use the broken lift."""
        raise InfrastructureError("the lift did not start")

    @success
    def solved(self) -> bool:
        return self.fetched == ["red"]

    @reward(1.0)
    def right(self) -> float:
        return float(self.fetched == ["red"])


def trained_text(trajectory: Trajectory) -> list[str]:
    """What each sampled segment says."""
    return [text_of(segment.ids) for segment in trajectory.segments if segment.sampled]
