"""Four ways to practise after one and the same warm-up, and one without: `python bench/methods.py`.

Every recipe is a run of its own in runs/RECIPE-SEED; finished runs are not repeated. Prints a table:
success of `practice` on the test tasks, the exact McNemar test against what it began with, and seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from seeds import summary_of

from renshu.evaluation import read_result
from renshu.evaluation.comparison import compare
from renshu.evaluation.words import p_value, rate, spread
from renshu.pipeline.recipe import find_recipe, read_recipe, recipe_name
from renshu.pipeline.run_folder import RunFolder
from renshu.pipeline.sources import sum_of
from renshu.pipeline.train import out_folder
from renshu.train.checkpoint import WEIGHTS

RECIPES = {
    "flights-dpo": "DPO",
    "flights-kto": "KTO",
    "flights-ppo": "PPO",
    "flights": "GRPO",
    "flights-no-warm-up": "GRPO without a warm-up",
}
HEAD = ("practice by", "before", "after", "95 % interval", "gained / lost", "p", "steps", "practice")


def line_of(label: str, run: RunFolder, stage: dict[str, float], before: str) -> list[str]:
    first, after = compare([read_result(arm, run.evaluation(arm)) for arm in (before, "practice")])
    against = after["against"]
    return [
        label,
        rate(first["success"]),
        rate(after["success"]),
        spread(after["low"], after["high"]),
        f"{against['gained']} / {against['lost']}",
        p_value(against["p"]),
        str(stage["steps"]),
        f"{stage['seconds']:.0f} s",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_intermixed_args()
    print("|", " | ".join(HEAD), "|")
    print("|---" * len(HEAD) + "|")
    starts = set()
    for recipe, label in RECIPES.items():
        summary = summary_of(recipe, options.seed, options.overrides)
        settings = read_recipe(recipe, [f"seed={options.seed}", *options.overrides])
        run = RunFolder(Path(out_folder(settings, recipe_name(find_recipe(recipe)))))
        warmed = len(settings.stages) > 1
        if warmed:
            starts.add(sum_of(run.path / "checkpoints" / "stages" / "warm-up" / WEIGHTS))
        line = line_of(label, run, summary["stages"][-1], "warm-up" if warmed else "base")
        print("|", " | ".join(line), "|", flush=True)
    print(f"\nweights after the warm-up: {'the same in all runs' if len(starts) == 1 else 'NOT the same'}")


if __name__ == "__main__":
    main()
