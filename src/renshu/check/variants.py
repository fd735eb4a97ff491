"""The gold solution, slightly changed: what should still pass, and what should not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from renshu.check.findings import Finding, found
from renshu.check.plays import Play, Stage, replayed, saying
from renshu.check.wording import final_say
from renshu.envs.moves import Call, Move, Say

PLAYED = 4  # tasks on which each variant is played
NUMBER = re.compile(r"(?<![\w.])\d+(?!\w)")  # one that stands alone, not the 82 of A82
WORDS = re.compile(r"\w*[A-Za-z]\w*")
Change = Callable[[str], str | None]


def check_variants(stage: Stage, gold: Sequence[Play]) -> Iterator[Finding]:
    """Play the variants on a few tasks that the gold solution solves."""
    solved = [play for play in gold if play.score is not None and play.score.success and play.trajectory]
    chosen = solved[:PLAYED]
    if not chosen:
        return
    without = _rate(stage, chosen, "no answer", lambda _: "")
    if without == 0.0:
        yield from _answers(stage, chosen)
    elif without is not None or not any(map(_reply, chosen)):  # not where an empty answer is unscored
        yield from _calls(stage, chosen)
    yield from _elsewhere(stage, solved)


def _answers(stage: Stage, plays: Sequence[Play]) -> Iterator[Finding]:
    """Changes of the last reply; asked only where the reply matters."""
    if not all(map(_spelled, plays)) and _rate(stage, plays, "other case", _other_case) == 0.0:
        yield found("case_sensitive", "@success", "the gold answer in other case (Yes → yES) is no success")
    if _rate(stage, plays, "spaces around", lambda text: f" {text}\n") == 0.0:
        yield found("space_sensitive", "@success", "the gold answer with spaces around it is no success")
    for change, text in ((_next_number(1), "one more"), (_next_number(-1), "one less")):
        if _rate(stage, plays, text, change) == 1.0:
            yield found("near_miss", "@success", f"the gold answer with {text} is a success, too")
    if _rate(stage, plays, "digits around", _longer) == 1.0:
        yield found("part_of_text", "@success", "the gold answer with a digit more (12 → 127) passes")


def _reply(play: Play) -> str:
    return (final_say(play.trajectory) if play.trajectory is not None else None) or ""


def _spelled(play: Play) -> bool:
    """Whether the prompt spells every word of the reply as it is there: then the case was asked for."""
    told = play.trajectory.messages if play.trajectory is not None else ()
    known = {word for m in told if m.role in ("system", "user") for word in WORDS.findall(m.content)}
    return known.issuperset(WORDS.findall(_reply(play)))


def _calls(stage: Stage, plays: Sequence[Play]) -> Iterator[Finding]:
    """Changes of the last call, where what is done matters and not what is said."""
    for by, text in ((1, "one more"), (-1, "one less")):
        changed = [(play, _with_number(play, by)) for play in plays]
        results = [_passes(stage, play, f"call, {text}", moves) for play, moves in changed if moves]
        if results and all(results):
            yield found("near_miss", "@success", f"the gold's last call with {text} is a success, too")
    shorter = [(play, moves) for play in plays if (moves := _without_last_call(play))]
    results = [_passes(stage, play, "last call left out", moves) for play, moves in shorter]
    if results and all(results):
        yield found("early_success", "@success", "the gold solution without its last call is a success, too")


def _elsewhere(stage: Stage, solved: Sequence[Play]) -> Iterator[Finding]:
    """The moves that solve one task, on the others."""
    if len(solved) < 4:
        return
    first, others = solved[0], solved[1:9]
    assert first.trajectory is not None
    moves = replayed(first.trajectory)
    passed = [_passes(stage, play, "gold of another task", moves) for play in others]
    if sum(bool(result) for result in passed) >= 0.9 * len(passed):
        yield found("one_answer_fits", "tasks", f"what solves task {first.task.id} solves the others, too")


def _rate(stage: Stage, plays: Sequence[Play], name: str, change: Change) -> float | None:
    """Share of tasks still solved with the last reply changed; None where nothing could be changed."""
    results = []
    for play in plays:
        assert play.trajectory is not None
        text = final_say(play.trajectory)
        changed = None if text is None else change(text)
        if changed is not None and changed != text:
            moves = [*replayed(play.trajectory)[:-1], Say(changed)]
            results.append(_passes(stage, play, name, moves))
    known = [result for result in results if result is not None]
    return sum(known) / len(known) if known else None


def _passes(stage: Stage, play: Play, name: str, moves: Sequence[Move]) -> bool | None:
    last = moves[-1] if moves and isinstance(moves[-1], Say) else Say("Done.")
    before = moves[:-1] if moves and isinstance(moves[-1], Say) else moves
    again = stage.play(name, play.split, play.task, saying(before, last.text))
    return again.score.success if again is not None and again.score is not None else None


def _other_case(text: str) -> str | None:
    return text.swapcase() if text.isascii() and any(c.isalpha() for c in text) and "{" not in text else None


def _next_number(by: int) -> Change:
    def change(text: str) -> str | None:
        return NUMBER.sub(lambda number: str(int(number[0]) + by), text) if NUMBER.search(text) else None

    return change


def _longer(text: str) -> str | None:
    return NUMBER.sub(lambda number: f"{number[0]}7", text) if NUMBER.search(text) else None


def _with_number(play: Play, by: int) -> list[Move]:
    """The moves with the whole numbers of the last call changed; none if it has no such argument."""
    assert play.trajectory is not None
    moves = replayed(play.trajectory)
    calls = [index for index, move in enumerate(moves) if isinstance(move, Call)]
    if not calls:
        return []
    last = moves[calls[-1]]
    assert isinstance(last, Call)
    numbers: dict[str, Any] = {
        name: value + by for name, value in last.arguments.items() if type(value) is int
    }
    if not numbers:
        return []
    moves[calls[-1]] = Call(last.name, {**last.arguments, **numbers})
    return moves


def _without_last_call(play: Play) -> list[Move]:
    assert play.trajectory is not None
    moves = replayed(play.trajectory)
    calls = [index for index, move in enumerate(moves) if isinstance(move, Call)]
    return [move for index, move in enumerate(moves) if index != calls[-1]] if len(calls) > 1 else []
