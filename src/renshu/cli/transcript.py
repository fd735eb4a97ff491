"""An episode, as a person reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from renshu.types import Message

STYLES = {"system": "dim", "user": "bold cyan", "assistant": "bold green", "tool": "yellow"}


def show(console: Console, messages: Iterable[Message]) -> None:
    """Print messages; thoughts are dim, calls look like calls."""
    for message in messages:
        for line in lines(message):
            console.print(line)


def lines(message: Message) -> list[Text]:
    """The lines of one message: thought, text, calls. Nothing in them is read as markup."""
    name = {"assistant": "agent"}.get(message.role, message.role)
    found = []
    if message.reasoning:
        found.append(Text.assemble((f"{name:>6} ", STYLES[message.role]), (f"({message.reasoning})", "dim")))
    if message.content or not (message.tool_calls or message.reasoning):
        found.append(Text.assemble((f"{name:>6} ", STYLES[message.role]), message.content or "(nothing)"))
    for call in message.tool_calls:
        arguments = ", ".join(
            f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in call.arguments.items()
        )
        found.append(
            Text.assemble((f"{name:>6} ", STYLES[message.role]), (f"→ {call.name}({arguments})", "magenta"))
        )
    return found
