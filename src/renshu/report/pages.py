"""Pages as one file: no script, no request, everything escaped; they can be mailed and opened anywhere."""

from __future__ import annotations

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
    path.write_text(page, encoding="utf-8", errors="replace")  # half a surrogate pair is no character
    return path
