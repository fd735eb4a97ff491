"""`renshu check TARGET`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from renshu.cli.common import finite

if TYPE_CHECKING:
    from rich.console import Console

    from renshu.check.dry_run import DryRun, Sample
    from renshu.pipeline.check import CheckReport

ENDS = 300  # characters that are shown of the beginning and of the end of a prompt
STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
SHOWN = (
    "gold",
    "answer",
    "hurried",
    "idle",
    "echo",
    "ramble",
    "random calls",
    "every word",
    "one call repeated",
)


def check(
    target: Annotated[
        str, typer.Argument(help="A recipe (a file or built in), file.py:Class, or a file of TRL rewards.")
    ],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, where it is a recipe.")] = None,
    preset: Annotated[str | None, typer.Option(help="A preset of the recipe.")] = None,
    model: Annotated[str | None, typer.Option(help="Rehearse with this model.")] = None,
    cases: Annotated[Path | None, typer.Option(help="Must-pass cases, a YAML file.")] = None,
    data: Annotated[Path | None, typer.Option(help="JSON lines for a file of TRL reward functions.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Sample a few groups as training would.")
    ] = True,
    tasks: Annotated[int, typer.Option(min=2, help="Tasks of each split played without a model.")] = 12,
    seconds: Annotated[
        float, typer.Option(min=1.0, callback=finite, help="Time for playing without a model.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Find out what is wrong with an environment or recipe before it is trained. Exit code 1: errors."""
    from rich.console import Console

    from renshu.cli.common import quiet
    from renshu.pipeline.check import check as check_target

    quiet()
    report = check_target(
        target,
        overrides=overrides or (),
        preset=preset,
        model=model,
        cases=cases,
        data=data,
        dry_run=dry_run,
        samples=tasks,
        seconds=seconds,
    )
    if as_json:
        print(json.dumps(report.as_json(), ensure_ascii=False))
    else:
        _show(Console(highlight=False), report)
    if not report.passed:
        raise typer.Exit(1)


def _show(console: Console, report: CheckReport) -> None:
    from rich.text import Text

    from renshu.check.findings import tally

    for tool in report.tools:
        console.print(Text.assemble(("tool ", "dim"), (_signature(tool), "magenta"), _brief(tool)))
    _show_policies(console, report)
    if report.cases:
        passed = sum(case.passed for case in report.cases)
        console.print(f"must-pass cases: {passed} of {len(report.cases)} pass")
    if report.dry_run is not None:
        _show_dry_run(console, report.dry_run)
    for finding in report.findings:
        head = (f"{finding.severity} {finding.code}", STYLES[finding.severity])
        console.print(Text.assemble(head, f"  {finding.where}: {finding.what}"), soft_wrap=True)
        console.print(Text(f"    → {finding.to_do}", style="dim"), soft_wrap=True)
    style = "bold green" if report.passed else "bold red"
    console.print(Text(f"{report.target}: {tally(report.findings)}", style=style))


def _signature(tool: dict[str, Any]) -> str:
    schema = tool["parameters"]
    required = schema.get("required", ())
    names = [name if name in required else f"{name}=…" for name in schema.get("properties", {})]
    return f"{tool['name']}({', '.join(names)})"


def _brief(tool: dict[str, Any]) -> str:
    first = (tool["description"].splitlines() or ["(no docstring)"])[0]
    return f"  {first:.80}"


def _show_policies(console: Console, report: CheckReport) -> None:
    from rich.table import Table

    table = Table(title="without a model", title_justify="left", box=None, pad_edge=False)
    for column in ("policy", "episodes", "success", "reward: lowest", "mean", "highest", "unscored"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for line in report.policies:
        if line.policy in SHOWN:
            success = "–" if line.success is None else f"{line.success:.0%}"
            rewards = [
                "–" if value is None else f"{value:.2f}" for value in (line.lowest, line.mean, line.highest)
            ]
            table.add_row(line.policy, str(line.episodes), success, *rewards, str(line.unscored))
    if table.row_count:
        console.print(table)


def _show_dry_run(console: Console, run: DryRun) -> None:
    metrics = run.metrics
    console.print(f"dry run: {run.tasks} tasks × {run.group} episodes in {run.seconds:.1f} s")
    numbers = {
        "reward": f"{metrics.get('reward', 0):.2f} ± {metrics.get('reward/std', 0):.2f}",
        "groups without signal": f"{1 - metrics.get('groups/spread', 0):.0%}",
        "truncated": f"{metrics.get('tokens/clipped', 0):.0%}",
        "unscored": f"{metrics.get('unscored', 0):.0f}",
        "calls an episode": f"{metrics.get('calls/mean', 0):.1f}",
        "of them refused or failed": f"{_faults(metrics):.1f}",
        "tokens an episode": f"{metrics['tokens/mean']:.0f}, at most {metrics['tokens/max']:.0f}",
    }
    if "success" in metrics:
        numbers["success"] = f"{metrics['success']:.0%}"
    for name, value in numbers.items():
        console.print(f"  {name}: {value}")
    for sample in run.samples:
        _show_sample(console, sample)


def _faults(metrics: dict[str, float]) -> float:
    return sum(metrics.get(f"{name}/mean", 0.0) for name in ("bad_calls", "tool_errors", "timeouts"))


def _show_sample(console: Console, sample: Sample) -> None:
    """Trained tokens are green; where there are no colours they stand between brackets."""
    from rich.text import Text

    title = f"{sample.about}: {sample.trained} of {sample.tokens} tokens are trained"
    console.print(Text(title, style="bold underline"), soft_wrap=True)
    text = Text()
    for span in sample.spans:
        # What is trained is shown whole; of what is not, a prompt of many lines would hide the findings.
        if span.trained:
            text.append(span.text if console.color_system else f"⟦{span.text}⟧", style="bold green")
        else:
            text.append(_shortened(span.text), style="dim")
    console.print(text, soft_wrap=True)


def _shortened(text: str) -> str:
    """The beginning and the end of a long text."""
    left_out = len(text) - 2 * ENDS
    if left_out <= 0:
        return text
    return f"{text[:ENDS]}\n… {left_out:,} more characters (--json has them) …\n{text[-ENDS:]}"
