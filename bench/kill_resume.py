"""kill -9 at random moments, resume, compare bit for bit: `python bench/kill_resume.py --kills 20`.

A small recipe on the embedded model is played once undisturbed, on one thread. Then it is killed while it
samples, learns, writes a checkpoint or evaluates, at a random call and a random moment of that call, resumed,
and compared: final weights, metrics, trajectories, evaluations and summary, times apart. Every run is a
process of its own. Exits with 1 if a single bit differs.
"""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from renshu.pipeline.recipe import Recipe, read_recipe
from renshu.pipeline.resume import resume_run
from renshu.pipeline.train import train_recipe
from renshu.pipeline.watch import Watcher

PHASES = {
    "sampling": ("renshu.pipeline.stages", "collect"),
    "learning": ("renshu.train.loop:Trainer", "_update"),
    "writing": ("renshu.train.checkpoint", "save"),
    "evaluating": ("renshu.pipeline.course", "evaluate"),
}
SETTINGS = [
    "threads=1",
    "stages.0.sft={demonstrations: 24, rows_per_step: 8, learning_rate: 1e-3}",
    "stages.1.grpo={steps: 5, tasks_per_step: 1, group: 4, learning_rate: 2e-4, beta: 0.01}",
    "stages.1.sample={max_tokens: 100, temperature: 0.8}",
    "eval={tasks: 3, dev_tasks: 2, every: 3, max_tokens: 80}",
    "checkpoints.every=2",
]
TIMES = ("seconds", "seconds_source", "seconds_train")
Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]


class Told(Watcher):
    """Writes where a resumed run goes on into a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def noted(self, text: str) -> None:
        self.file.write_text(text.rpartition(" goes on ")[2])


def in_a_process(body: Callable[[], object]) -> int:
    """Exit status of a forked process: 0, 1 after an exception, negative after a signal."""
    child = os.fork()
    if child == 0:
        try:
            body()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def patch(wrap: Wrap) -> None:
    """Put `wrap(phase, function)` in the place of every phase's function."""
    for phase, (place, name) in PHASES.items():
        owner = pkgutil.resolve_name(place)
        setattr(owner, name, wrap(phase, getattr(owner, name)))


def play_timed(recipe: Recipe, times: Path) -> None:
    """Play the recipe; write the seconds of every call of every phase."""
    seconds: dict[str, list[float]] = {phase: [] for phase in PHASES}

    def timed(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **keywords: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **keywords)
            seconds[phase].append(time.perf_counter() - began)
            return result

        return wrapped

    patch(timed)
    train_recipe(recipe, name="flights")
    times.write_text(json.dumps(seconds))


def play_killed(recipe: Recipe, deadly: str, call: int, delay: float) -> None:
    """Play the recipe; die `delay` seconds into call number `call` of a phase."""
    calls = 0

    def killing(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += phase == deadly
            if phase == deadly and calls == call + 1:
                threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
            return function(*args, **keywords)

        return wrapped

    patch(killing)
    train_recipe(recipe, name="flights")


def contents(run: Path) -> dict[str, Any]:
    """Everything a run says and keeps, times apart, by file."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.suffix == ".jsonl":
            found[name] = [without_times(json.loads(line)) for line in path.open("rb")]
        elif path.name == "summary.json":
            found[name] = without_times(json.loads(path.read_bytes()))
        elif path.suffix == ".safetensors":
            found[name] = path.read_bytes()
    return found


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def compare(whole: dict[str, Any], run: Path) -> str:
    other = contents(run)
    odd = sorted(name for name in whole.keys() | other.keys() if whole.get(name) != other.get(name))
    return "equal" if not odd else f"DIFFERS: {', '.join(odd)}"


def kill_and_resume(
    number: int, folder: Path, whole: dict[str, Any], times: dict[str, list[float]], chance: random.Random
) -> str:
    """One line of the table."""
    phase = list(PHASES)[number % len(PHASES)]
    call = chance.randrange(1 if phase == "writing" else 0, len(times[phase]))  # before it nothing is kept
    delay = chance.random() * times[phase][call]
    run = folder / f"killed-{number}"
    recipe = read_recipe("flights", [*SETTINGS, f"out={run}"])
    status = in_a_process(lambda: play_killed(recipe, phase, call, delay))
    if status != -signal.SIGKILL:
        return f"{number + 1:>4}  {phase:<11} the run ended before it was killed (status {status}): DIFFERS"
    told = folder / "told"
    in_a_process(lambda: resume_run(run, watcher=Told(told)))
    moment = f"{number + 1:>4}  {phase:<11} {call + 1:>4}  {delay:7.3f}"
    return f"{moment}  {told.read_text():<24}  {compare(whole, run)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = read_recipe("flights", [*SETTINGS, f"out={folder / 'whole'}"])
        if in_a_process(lambda: play_timed(recipe, folder / "times.json")):
            raise SystemExit("the undisturbed run failed")
        times = json.loads((folder / "times.json").read_text())
        whole = contents(folder / "whole")
        print("kill  while       call  seconds  resumed                   final weights, logs, summary")
        lines = []
        for number in range(options.kills):
            lines.append(kill_and_resume(number, folder, whole, times, chance))
            print(lines[-1], flush=True)
    equal = sum(line.endswith("equal") for line in lines)
    print(f"{equal} of {len(lines)} resumed runs equal the undisturbed one, bit for bit")
    raise SystemExit(equal < len(lines))


if __name__ == "__main__":
    main()
