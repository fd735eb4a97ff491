"""The gold solution on tasks of every split: the commonest fault is that it does not earn the reward."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from renshu.check.findings import Finding, found
from renshu.check.plays import Hangs, Play, Stage, gold, saying, within
from renshu.envs.contract import Problem, played, setups
from renshu.envs.moves import say
from renshu.envs.tasks import Split
from renshu.types import Stop, Task

ANSWERS = (
    *("answer", "solution", "gold", "ground_truth", "gold_answer", "target", "label", "expected"),
    *("final_answer", "reference", "reference_answer", "expected_answer", "correct_answer", "result"),
)


CONTRACT_SHARE = 0.4  # of the time of all playing


def in_turn(samples: dict[Split, Sequence[Task]]) -> list[tuple[Split, Task]]:
    """The first task of every split, then the second of every split, so that no split is left out."""
    longest = max(map(len, samples.values()), default=0)
    return [
        (split, tasks[index])
        for index in range(longest)
        for split, tasks in samples.items()
        if index < len(tasks)
    ]


def check_contract(stage: Stage, samples: dict[Split, Sequence[Task]]) -> Iterator[Finding]:
    """The contract's questions, asked about every sample; one finding for each kind of problem."""
    problems: defaultdict[str, list[Problem]] = defaultdict(list)
    told: defaultdict[str, set[str]] = defaultdict(set)
    asked = 0
    for split, task in in_turn(samples):
        if stage.spent > CONTRACT_SHARE or "hangs" in problems:
            break
        asked += 1
        for problem in _asked(stage, task):
            code = _code(problem)
            problems[code].append(problem)
            told[code].add(split)
    for code, listed in problems.items():
        splits = ", ".join(sorted(told[code]))
        number = len({problem.detail.split(": ")[0] for problem in listed})
        yield found(code, f"{number} of {asked} tasks ({splits})", listed[0].detail)


def _asked(stage: Stage, task: Task) -> list[Problem]:
    environment = stage.environment

    def ask() -> list[Problem]:
        found = list(setups(environment, [task]))
        return found or list(played(environment, task))

    try:
        return within(stage.limit, ask)
    except Hangs as error:
        return [Problem("hangs", f"task {task.id}: {error}")]


def _code(problem: Problem) -> str:
    """A finer name for what leaves an episode unscored."""
    detail = problem.detail
    if problem.code not in ("unscored", "gold_unscored"):
        return problem.code
    if "non-finite" in detail:
        return "reward_nan"
    if "not a number" in detail or "neither True nor False" in detail:
        return "reward_not_a_number"
    if "success_failed" in detail:
        return "success_raises"
    if "reward_failed" in detail or "judge_failed" in detail:
        return "reward_raises"
    return problem.code


def play_gold(stage: Stage, samples: dict[Split, Sequence[Task]]) -> list[Play]:
    """The gold solution on every sample, if there is a `solve()`."""
    if not stage.environment.has_script("solve"):
        return []
    plays = [stage.play("gold", split, task, gold) for split, task in in_turn(samples)]
    return [play for play in plays if play is not None and play.trajectory is not None]


def check_turns(stage: Stage, plays: Sequence[Play]) -> Iterator[Finding]:
    """The gold solution must come to its end before `max_turns` does."""
    cut = [play for play in plays if play.trajectory is not None and play.trajectory.stop is Stop.TURNS]
    if cut:
        limit = stage.environment.max_turns
        yield found(
            "turns_too_few",
            f"{len(cut)} of {len(plays)} tasks",
            f"solve() is cut off after max_turns = {limit} replies, e.g. task {cut[0].task.id}",
        )


def check_tools_used(stage: Stage, plays: Sequence[Play]) -> Iterator[Finding]:
    """Tools that the gold solution never calls, and tools that answer nothing."""
    tools = [spec.name for spec in stage.environment().tools()]
    messages = [message for play in plays if play.trajectory for message in play.trajectory.messages]
    called = {call.name for message in messages for call in message.tool_calls}
    if tools and plays and not called:
        yield found("tools_unused", "solve()", f"it calls none of {', '.join(tools)}")
    for name in tools:
        answers = {message.content for message in messages if message.role == "tool" and message.name == name}
        if answers and answers <= {"null", ""}:
            yield found("tool_answers_nothing", f"tool {name}", "all the model reads of it is `null`")


def check_hurried(stage: Stage, samples: dict[Split, Sequence[Task]]) -> Iterator[Finding]:
    """The mediocre script must be playable, too."""
    if not stage.environment.has_script("hurried"):
        return
    for task in samples.get("train", ()):
        play = stage.play("hurried", "train", task, lambda environment: environment.hurried())
        if play is not None and play.failure:
            yield found("hurried_fails", f"task {task.id}", play.failure)
            return


def answers_of(task: Task) -> list[str]:
    """What a reader would say, in the usual forms, going by a field such as `answer`; none without one."""
    key = next((key for key in ANSWERS if key in task.fields), None)
    if key is None:
        return []
    given: Any = task.fields[key]
    whole = str(given[0] if isinstance(given, list) and given else given)
    short = whole.rsplit("####", 1)[-1].strip()
    boxed = re.findall(r"\\boxed\{(.*?)\}", whole)
    short = boxed[-1] if boxed else short
    inner = (short, f"\\boxed{{{short}}}")
    plain = [whole, *inner, f"#### {short}", f"The answer is {short}", f"Answer: {short}"]
    tagged = [f"<think>\nI know.\n</think>\n<answer>{form}</answer>" for form in inner]
    both = [f"<answer>\\boxed{{{short}}}</answer>", f"<answer>{short}</answer>", f'{{"answer": "{short}"}}']
    return list(dict.fromkeys([*plain, *tagged, *both]))


def check_answers(stage: Stage, tasks: Sequence[Task]) -> Iterator[Finding]:
    """Without a solve(): does the answer that the task holds earn each part of the reward in any form?"""
    best: dict[str, float] = {}
    told = [task for task in tasks if answers_of(task)]
    for task in told:
        for text in answers_of(task):
            play = stage.play("answer", "train", task, saying((), text))
            if play is not None and play.score is not None:
                for name, value in play.score.parts.items():
                    best[name] = max(best.get(name, 0.0), value or 0.0)
    if stage.environment().tools():  # what is to be done may be more than an answer
        return
    weights = {part.name: part.weight for part in stage.environment().rubric().parts}
    for name, value in best.items():
        if value <= 0 < weights[name]:
            what = "the answer that the task holds earns nothing in any of the usual forms"
            yield found("gold_unpaid", f"reward {name}", f"{what} ({len(told)} tasks)")


def check_rationale(stage: Stage, tasks: Sequence[Task], texts: Sequence[str]) -> Iterator[Finding]:
    """A gold text with `####` in it, which nothing takes apart. texts: literals of the deciding functions."""
    if any("#" in text for text in texts):
        return
    for task in tasks:
        for key, value in task.fields.items():
            if key in ANSWERS and "####" in str(value) and not _wins(stage, task, str(value)):
                what = f"e.g. {str(value)!r:.60}: it is a whole solution with the answer behind `####`"
                yield found("gold_rationale", f"field {key!r}", what)
                return


def _wins(stage: Stage, task: Task, whole: str) -> bool:
    """Whether the short answer is a success although the gold text is long."""
    if stage.environment.has_script("solve"):
        played = stage.play("gold", "train", task, gold)
        return played is not None and played.score is not None and played.score.success is True
    play = stage.play("answer", "train", task, lambda _: iter([say(whole.rsplit("####", 1)[-1].strip())]))
    return play is not None and play.score is not None and play.score.success is True
