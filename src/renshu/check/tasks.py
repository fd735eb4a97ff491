"""The three splits: there, made alike each time, and apart."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

from renshu.check.findings import Finding, found
from renshu.check.plays import Hangs, Stage, within
from renshu.envs.tasks import SPLITS, GeneratedSplit, Split, Tasks
from renshu.errors import DataError
from renshu.types import Message, Task

OPENED = 12  # tasks of a split whose requests are compared, and so many alike ones of train
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


def check_alike(stage: Stage, tasks: Tasks, used: set[str] | None) -> Iterator[Finding]:
    """Tasks that differ from those of train only in fields that nothing reads. used: names in the code.

    What is asked is compared, too: a field may be read in ways that are not seen. None: nothing is known.
    """
    if used is None or not tasks.train or not set(tasks.train[0].fields) - IDENTITY - used - {"prompt"}:
        return
    kept = used | {"prompt"}
    train = list(islice(tasks.train, COMPARED))
    same = {canonical(task) for task in train}
    twins: defaultdict[str, list[Task]] = defaultdict(list)
    for task in train:
        twins[canonical(task, kept)].append(task)
    for name in ("dev", "test"):
        split: Sequence[Task] = getattr(tasks, name)
        new = [task for task in islice(split, COMPARED) if canonical(task) not in same][:OPENED]
        alike = [task for task in new if _asked_alike(stage, task, twins[canonical(task, kept)][:OPENED])]
        if alike:
            unread = ", ".join(sorted(set(alike[0].fields) - IDENTITY - kept))
            what = f"{len(alike)} of {len(new)} tasks differ from some of the train split only in {unread}"
            code = "tasks_repeated" if isinstance(split, GeneratedSplit) else "tasks_shared"
            yield found(code, f"split {name}", f"{what}, which the code never reads", "warning")


def _asked_alike(stage: Stage, task: Task, twins: Sequence[Task]) -> bool:
    opening = _opening(stage, task) if twins else None
    return opening is not None and any(_opening(stage, twin) == opening for twin in twins)


def _opening(stage: Stage, task: Task) -> tuple[Message, ...] | None:
    if stage.exhausted:
        return None
    try:
        return within(stage.limit, lambda: stage.environment().opening(task))
    except (Exception, SystemExit, Hangs):  # told by the contract
        return None


def canonical(task: Task, kept: set[str] | None = None) -> str:
    """The fields (those that are kept) as text, without what only names the task."""
    names = (set(task.fields) if kept is None else kept) - IDENTITY
    fields = {key: value for key, value in task.fields.items() if key in names}
    return json.dumps(fields, sort_keys=True, default=repr, ensure_ascii=False)
