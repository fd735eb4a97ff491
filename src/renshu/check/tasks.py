"""The three splits: there, made alike each time, and apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice

from renshu.check.findings import Finding, found
from renshu.envs.tasks import SPLITS, GeneratedSplit, Split, Tasks
from renshu.errors import DataError
from renshu.types import Task

COMPARED = 500  # tasks of a split that are compared with the other splits
IDENTITY = frozenset({"id", "split"})  # fields that tell tasks apart without making them different


def check_tasks(tasks: Tasks, samples: int) -> Iterator[Finding]:
    """Empty splits, tasks that cannot be made or differ each time, tasks that are in two splits."""
    for name in SPLITS:
        split: Sequence[Task] = getattr(tasks, name)
        if not split:
            yield found("empty_split", f"split {name}", "it has no tasks")
            continue
        yield from _made(name, split, samples)
    for reason, count in tasks.set_aside.items():
        yield found("tasks_fail", "tasks", f"{count} rows were set aside: {reason}", "warning")
    yield from _apart(tasks)


def _made(name: Split, split: Sequence[Task], samples: int) -> Iterator[Finding]:
    for index in range(min(samples, len(split))):
        try:
            first, again = split[index], split[index]
        except DataError as error:
            yield found("tasks_fail", f"split {name}", str(error))
            return
        if canonical(first) != canonical(again):
            yield found("tasks_random", f"split {name}", f"task {first.id} is drawn differently each time")
            return


def _apart(tasks: Tasks) -> Iterator[Finding]:
    seen: dict[str, set[str]] = {}
    for name in SPLITS:
        try:
            seen[name] = {canonical(task) for task in islice(getattr(tasks, name), COMPARED)}
        except DataError:  # told above
            return
    for name in ("dev", "test"):
        shared = seen["train"] & seen[name]
        if shared:
            what = f"{len(shared)} of {len(seen[name])} different tasks are in the train split, too"
            generated = isinstance(getattr(tasks, name), GeneratedSplit)
            few = generated and len(shared) < 0.05 * len(seen[name])
            code = "tasks_repeated" if generated else "tasks_shared"
            yield found(code, f"split {name}", what, "note" if few else None)
    both = (seen["dev"] & seen["test"]) - seen["train"]
    if both and not isinstance(tasks.test, GeneratedSplit):
        yield found("tasks_shared", "splits dev and test", f"{len(both)} tasks are in both")


def canonical(task: Task) -> str:
    """The fields as text, without what only names the task."""
    fields = {key: value for key, value in task.fields.items() if key not in IDENTITY}
    return json.dumps(fields, sort_keys=True, default=repr, ensure_ascii=False)
