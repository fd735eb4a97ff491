"""What a run that has not come to its end tells, in the shape of a summary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from renshu.config import load_yaml
from renshu.errors import DataError
from renshu.evaluation import Result, read_result

TIMES = ("seconds_source", "seconds_train")


def summary_so_far(folder: Path, metrics: Sequence[dict[str, Any]], failure: str | None) -> dict[str, Any]:
    """Stages by their lines of `metrics.jsonl`, arms by their files; `unfinished` says where the run stands.

    Tokens and seconds are those of training alone. An arm that was not measured on as many tasks as the
    first is left out. Raises ConfigError or DataError if the folder's files are damaged.
    """
    recipe = load_yaml(folder / "recipe.resolved.yaml")
    missing = [key for key in ("seed", "stages") if key not in recipe]
    if missing:
        raise DataError(f"{folder / 'recipe.resolved.yaml'} is damaged: it has no {', '.join(missing)}")
    names = [stage["name"] for stage in recipe["stages"]]
    arms = _arms(folder / "evaluation", ["base", "few-shot", *names, "final"])
    return {
        "recipe": folder.resolve().name,
        "seed": recipe["seed"],
        "seconds": _total(metrics, *TIMES),
        "stages": [told for stage in recipe["stages"] if (told := _stage(stage, metrics)) is not None],
        "evaluation": {str(recipe.get("env") or "posted").rpartition(":")[2]: {"arms": arms}} if arms else {},
        "tokens": {name: int(_total(metrics, f"tokens_{name}")) for name in ("computed", "naive")},
        "unfinished": _standing(metrics) + (f" It ended with {failure}." if failure else ""),
    }


def _stage(stage: dict[str, Any], metrics: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    rows = [row for row in metrics if row["stage"] == stage["name"]]
    algorithm = next(name for name in ("sft", "dpo", "kto", "grpo", "ppo") if name in stage)
    told = {"name": stage["name"], "algorithm": algorithm, "steps": len(rows)}
    return {**told, "seconds": _total(rows, *TIMES)} if rows else None


def _arms(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    results: list[Result] = []
    for name in names:
        try:
            result = read_result(name, folder / f"{name}.jsonl")
        except DataError:
            continue  # torn in the middle: it is measured again when the run goes on
        if result.outcomes and (not results or result.tasks == results[0].tasks):
            results.append(result)
    base = results[0] if results and results[0].arm == "base" else None
    return [result.summary(None if result is base else base) for result in results]


def _standing(metrics: Sequence[dict[str, Any]]) -> str:
    if not metrics:
        return "This run has not come to its end: it stands before its first step."
    last = metrics[-1]
    return (
        f"This run has not come to its end: it stands at step {last['step']} of {last['steps']} of "
        f"{last['stage']}."
    )


def _total(rows: Sequence[dict[str, Any]], *keys: str) -> float:
    return float(sum(row.get(key) or 0 for row in rows for key in keys))
