"""Pages as one file: no script, no request, everything escaped; they can be mailed and opened anywhere."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from renshu.evaluation.words import cost, p_value, points, rate, spread

WORDS = {"cost": cost, "p": p_value, "points": points, "rate": rate, "spread": spread}  # of every template


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Fill a template of this folder with values and write it. Returns the path."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = files("renshu.report")
    environment = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["words"] = WORDS
    page = environment.get_template(template).render(**values)
    data = page.encode("utf-8", "replace")  # half a surrogate pair is no character
    if path.exists() and not path.is_file():  # a device such as /dev/stdout
        path.write_bytes(data)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)  # an earlier page stays until this one is whole
    finally:
        temporary.unlink(missing_ok=True)
    return path
