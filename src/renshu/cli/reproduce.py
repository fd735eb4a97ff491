"""`renshu reproduce BUNDLE`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    bundle: Annotated[Path, typer.Argument(help="An archive that renshu pack made.")],
    out: Annotated[Path | None, typer.Option(help="A new folder for it; default: its name, here.")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the environment's code without asking.")
    ] = False,
    only_unpack: Annotated[
        bool, typer.Option("--unpack", help="Only unpack: a run for eval, chat and serve; nothing runs.")
    ] = False,
) -> None:
    """Train a packed run again: are the weights the same, bit for bit? Exit code 1 if not."""

    from renshu.cli.common import quiet
    from renshu.cli.show import TerminalWatcher
    from renshu.handover.reproduce import reproduce as train_again
    from renshu.handover.unpack import open_bundle
    from renshu.train.progress import Terminal

    quiet()
    folder = open_bundle(bundle, out, trust=trust)
    print(f"unpacked to {folder}")
    if only_unpack:
        return
    result = train_again(folder, lambda code: trust or _ask(code), TerminalWatcher(Terminal()))
    before, now = ("unknown" if success is None else f"{success:.1%}" for success in result.success)
    print(f"success of the packed run {before}, of this one {now}")
    if result.identical:
        print("the final weights are the same, bit for bit")
        return
    print(f"the final weights differ in {len(result.odd)} tensors, e.g. {result.odd[0]}")
    raise SystemExit(1)


def _ask(code: Sequence[str]) -> bool:
    """Whether the person at the terminal lets the code run; nobody there: no."""
    import sys

    listed = ", ".join(code) or "none of its own; the environment comes with Renshu or a package"
    print(f"This will run Python code that came with the bundle, as you: {listed}.")
    if not sys.stdin.isatty():
        return False
    try:
        return input("Run it? Type yes: ").strip().lower() == "yes"
    except EOFError:
        return False
