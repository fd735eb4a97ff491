"""report.html: one file, no script, no request; it can be mailed and opened anywhere."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from renshu.report.charts import interval_chart, line_chart, stacked_chart
from renshu.report.data import RunData, bars, chosen_samples
from renshu.report.verdict import verdict


def build_report(folder: str | Path) -> Path:
    """Write `report.html` into a finished run's folder and return its path. Raises DataError."""
    from jinja2 import Environment, StrictUndefined

    run = RunData.read(folder)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((files("renshu.report") / "report.html.jinja").read_text("utf-8"))
    stages = []
    for stage in run.summary["stages"]:
        names, columns = run.tool_sequences(stage["name"])
        stages.append(
            {
                **stage,
                "curves": line_chart(run.curves(stage["name"]), x_label="step", y_label="mean of the step"),
                "sequences": stacked_chart(columns, names, x_label="step") if columns else None,
            }
        )
    page = template.render(
        run=run,
        summary=run.summary,
        verdict=verdict(run.summary),
        stages=stages,
        charts={name: interval_chart(bars(b["arms"])) for name, b in run.summary["evaluation"].items()},
        samples=chosen_samples(run.samples),
    )
    path = Path(folder) / "report.html"
    path.write_text(page, encoding="utf-8", errors="replace")  # half a surrogate pair is no character
    return path
