"""Success of a recipe pooled over seeds: `python bench/seeds.py flights --seeds 0 1 2`. Prints JSON.

Every seed is a run of its own in runs/RECIPE-SEED; finished runs are not repeated, broken-off ones go on.
Arms are pooled by adding up their tasks: the interval is Wilson's on all of them; `each` is every seed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from renshu.evaluation import wilson
from renshu.pipeline.recipe import find_recipe, read_recipe, recipe_name
from renshu.pipeline.resume import resume_run
from renshu.pipeline.run_folder import is_run
from renshu.pipeline.train import out_folder, train_recipe
from renshu.train.checkpoint import latest


def summary_of(recipe: str, seed: int, overrides: list[str]) -> dict[str, Any]:
    """The summary of one run, played if it is not there yet."""
    path = find_recipe(recipe)
    settings = read_recipe(recipe, [f"seed={seed}", *overrides])
    folder = out_folder(settings, recipe_name(path))
    if not (folder / "summary.json").is_file():
        print(f"{recipe}, seed {seed} → {folder}", file=sys.stderr)
        if is_run(folder) and latest(folder / "checkpoints").path is not None:
            resume_run(folder)
        else:
            train_recipe(settings, name=recipe_name(path), base=path.parent, overwrite=True)
    summary: dict[str, Any] = json.loads(Path(folder / "summary.json").read_text("utf-8"))
    return summary


def pooled(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Each arm over all runs."""
    arms: dict[str, list[dict[str, Any]]] = {}
    for summary in summaries:
        (result,) = summary["evaluation"].values()
        for arm in result["arms"]:
            arms.setdefault(arm["arm"], []).append(arm)
    shown = {}
    for name, parts in arms.items():
        n = sum(part["n"] for part in parts)
        interval = wilson(round(sum(part["n"] * (part["success"] or 0.0) for part in parts)), n)
        each = [part["success"] for part in parts]
        shown[name] = {
            "success": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "n": n,
            "each": each,
        }
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_intermixed_args()
    summaries = [summary_of(options.recipe, seed, options.overrides) for seed in options.seeds]
    seconds = [summary["seconds"] for summary in summaries]
    print(json.dumps({"recipe": options.recipe, "seconds": seconds, "arms": pooled(summaries)}, indent=2))


if __name__ == "__main__":
    main()
