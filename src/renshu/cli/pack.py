"""`renshu pack RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def pack(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    out: Annotated[Path | None, typer.Option(help="The archive; default: RUN.renshu.zip here.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="File of the bundle that holds no secret after all (repeatable).")
    ] = None,
) -> None:
    """Hand a run over: one archive with weights, environment, recipe, versions, report and card."""
    from renshu.cli.common import quiet
    from renshu.handover.pack import pack as pack_run

    quiet()
    packed = pack_run(run, out, allow=allow or ())
    for warning in packed.allowed:
        print(f"allowed: {warning}")
    if packed.changed:
        print(f"changed since the run, whose numbers are of the earlier code: {', '.join(packed.changed)}")
    for name in packed.files:
        print(f"  {name}")
    print(f"{packed.path}: {len(packed.files)} files, {packed.path.stat().st_size:,} bytes")
