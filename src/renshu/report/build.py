"""report.html: what a run did, on one page."""

from __future__ import annotations

from pathlib import Path

from renshu.report.charts import interval_chart, line_chart, stacked_chart
from renshu.report.data import RunData, bars, chosen_samples
from renshu.report.pages import write_page
from renshu.report.verdict import verdict


def build_report(folder: str | Path) -> Path:
    """Write `report.html` into a run's folder and return its path: of a run that has not come to its end
    with what it has told so far. Raises DataError, or ConfigError, if it is damaged.
    """
    run = RunData.read(folder)
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
    return write_page(
        Path(folder) / "report.html",
        "report.html.jinja",
        run=run,
        summary=run.summary,
        verdict=verdict(run.summary),
        stages=stages,
        charts={name: interval_chart(bars(b["arms"])) for name, b in run.summary["evaluation"].items()},
        samples=chosen_samples(run.samples),
    )
