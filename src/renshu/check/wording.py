"""What the model is told, against what is expected of it: formats, names of tools, the answer itself."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from renshu.check.findings import Finding, found
from renshu.check.gold import ANSWERS
from renshu.check.plays import Play, Stage, replayed, saying
from renshu.envs.moves import Call, Say
from renshu.types import Message, Task, Trajectory

TAG = re.compile(r"(?<!\?P)(?<!\?)<\s*(/?)([A-Za-z][A-Za-z_]{1,24})\s*>")
MARKUP = frozenset({"tool_call", "tool_response", "tools", "br", "im_start", "im_end", "module", "lambda"})
GIVEAWAYS = ("answer", "expected", "solution", "gold", "correct", "hint", "secret", "truth", "答案", "解答")
PLAIN = re.compile(r"[^\W_][\w' -]{0,19}")
WORD = r"(?<![A-Za-z0-9_])"
NAMED = re.compile(rf"{WORD}([A-Za-z]+(?:_[A-Za-z0-9]+)+)(?![A-Za-z0-9_])")
CALLED = re.compile(rf"{WORD}([A-Za-z]\w{{2,}})\((?=[^)]*\))")
QUOTED = re.compile(r"`([A-Za-z]\w{2,})(?:\([^`]*\))?`")
SPOKEN = re.compile(r"(?i)\b(?:the|use|using|call|with)\s+([A-Za-z]\w{3,})\s+tool\b")
USED = re.compile(
    r"(?i)(?:\b(?:use|using|call|calling|invoke|run|query)\s+(?:the\s+)?|(?:使用|调用|用)\s*)"
    r"[`'\"]?([a-z]+(?:_[a-z0-9]+)+)(?![A-Za-z0-9_])"
)
# pieces of a frame, the smallest first: nothing, one mark, marks, a word with marks
NEAREST = ("", r"[^\w\s]\s*", r"[^\w\s]+\s*", r"[^\w\s]*\s*\w+[^\w]*")
VALUE_BEGINS = re.compile(r"(?:\w+(?:[-./@_,+]|://)|\d+:)*\w*$")
VALUE_ENDS = re.compile(r"^\w*(?:(?:[-./@_,+]|:(?=\d))\w+)*")


@dataclass(frozen=True)
class Told:
    """All that the model reads before it acts on one task."""

    task: Task
    opening: tuple[Message, ...]
    tools: str  # the tools' schemas as text

    @property
    def system(self) -> str:
        return "\n".join(m.content for m in self.opening if m.role == "system")

    @property
    def text(self) -> str:
        return "\n".join([*(m.content for m in self.opening), self.tools])


def tell(stage: Stage, task: Task) -> Told:
    """Raises what `setup` raises."""
    environment = stage.environment()
    opening = environment.opening(task)
    schemas = [spec.schema["function"] for spec in environment.tools()]
    return Told(task, opening, json.dumps(schemas, ensure_ascii=False))


def check_format(told: Sequence[Told], texts: Mapping[str, str], replies: Sequence[str]) -> Iterator[Finding]:
    """Tags and markers that rewards look for, or that the gold answer has, and that nobody asks for.

    texts: literals of the deciding functions → who has them. replies: the gold solution's last words.
    """
    everything = "\n".join(one.text for one in told)
    wanted: dict[str, str] = {}
    for text, owner in texts.items():
        for marker in markers(text):
            wanted.setdefault(marker, owner)
    if any("####" in str(value) for one in told for value in one.task.fields.values()):
        wanted.pop("####", None)  # it is the gold text that is taken apart there
    for reply in replies:
        for marker in markers(reply):
            wanted.setdefault(marker, "solve()")
    missing = {marker: owner for marker, owner in wanted.items() if not _asked(marker, everything)}
    for owner in dict.fromkeys(missing.values()):
        listed = ", ".join(marker for marker, of in missing.items() if of == owner)
        yield found("format_not_asked", owner, f"it looks for {listed}, which nothing in the prompt asks for")
    if replies and all(_is_object(reply) for reply in replies) and "json" not in everything.casefold():
        yield found("format_not_asked", "solve()", "it answers in JSON, which nothing in the prompt asks for")


def markers(text: str) -> list[str]:
    """Tags, `\\boxed` and `####` in a text or regular expression."""
    tags = [f"<{name}>" for _, name in TAG.findall(text.replace("\\", "")) if name.casefold() not in MARKUP]
    boxed = ["\\boxed"] if "boxed" in text else []
    return list(dict.fromkeys([*tags, *boxed, *(["####"] if "####" in text else [])]))


def _asked(marker: str, prompt: str) -> bool:
    return marker.strip("\\").casefold() in prompt.casefold()


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False


def check_frame(stage: Stage, told: Sequence[Told], plays: Sequence[Play]) -> Iterator[Finding]:
    """Words around every gold answer without which it fails, and which nobody asks for: `ANSWER: 12`."""
    ends = [(play, last_words(play.trajectory)) for play in plays if play.trajectory is not None]
    head, tail = _around([text for _, text in ends])
    prompt = "\n".join(one.text for one in told).casefold()
    if not _unasked((head, tail), prompt) or not all(_won(play) for play, _ in ends[:3]):
        return
    lost = 0
    for play, text in ends[:3]:
        assert play.trajectory is not None
        core = text[len(head) : len(text) - len(tail)]
        without = stage.play("core", play.split, play.task, saying(replayed(play.trajectory)[:-1], core))
        lost += without is not None and without.score is not None and without.score.success is False
    unasked = _unasked(_needed(stage, *ends[0], head, tail), prompt) if lost == len(ends[:3]) else []
    if unasked:
        what = f"the answer must be framed by {' … '.join(map(repr, unasked))}, which the prompt never says"
        yield found("format_not_asked", "solve()", what)


def _unasked(frame: Sequence[str], prompt: str) -> list[str]:
    """The parts of a frame that are more than punctuation and do not stand in the prompt."""
    parts = [part.strip() for part in frame]
    return [part for part in parts if part.casefold().strip(" :.,=：。，、") not in prompt]


def _needed(stage: Stage, play: Play, text: str, head: str, tail: str) -> tuple[str, str]:
    """The shortest end of `head` and beginning of `tail` with which the answer still passes."""
    assert play.trajectory is not None
    core, before = text[len(head) : len(text) - len(tail)], replayed(play.trajectory)[:-1]

    def passes(said: str) -> bool:
        again = stage.play("core", play.split, play.task, saying(before, said))
        return again is not None and again.score is not None and bool(again.score.success)

    shorter = [part[0] for pattern in NEAREST if (part := re.search(rf"{pattern}$", head))]
    head = next((part for part in shorter if len(part) < len(head) and passes(part + core + tail)), head)
    shorter = [part[0] for pattern in NEAREST if (part := re.match(pattern, tail))]
    return head, next((p for p in shorter if len(p) < len(tail) and passes(head + core + p)), tail)


def _around(texts: Sequence[str]) -> tuple[str, str]:
    """What all the texts begin and end with; nothing where fewer than three differ.

    Never a part of the answer itself: dates of one year, numbers like `L-1234`, addresses of one host.
    """
    different = list(dict.fromkeys(texts))
    if len(different) < 3:
        return "", ""
    head = VALUE_BEGINS.sub("", _begin(different))
    rest = [text[len(head) :][::-1] for text in different]
    return head, VALUE_ENDS.sub("", _begin(rest)[::-1])


def _begin(texts: Sequence[str]) -> str:
    """What all texts begin with: the first and the last in order differ the earliest."""
    first, last = min(texts), max(texts)
    end = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), None)
    return first[:end]


def last_words(trajectory: Trajectory) -> str:
    """What the policy said last; empty if that was a call."""
    return next((m.content for m in reversed(trajectory.messages) if m.role == "assistant"), "")


def check_names(told: Sequence[Told], tools: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Names in the prompt that look like tools and are none. tools: name → its parameters."""
    known = {*tools, *(parameter for parameters in tools.values() for parameter in parameters)}
    reported: set[str] = set()
    for one in told:
        fields = json.dumps(dict(one.task.fields), default=str, ensure_ascii=False)
        prompt = "\n".join(message.content for message in one.opening)
        used = [name for name in USED.findall(prompt) if not _word(name, one.tools)]
        said = {*CALLED.findall(prompt), *SPOKEN.findall(prompt), *used}
        looks = {*NAMED.findall(prompt), *QUOTED.findall(prompt), *said}
        for name in sorted(looks - known - reported):
            near = _nearest(name, tools)
            if near is not None:
                reported.add(name)
                yield found("tool_misnamed", "the prompt", f"it names {name!r}, but the tool is {near!r}")
            elif name in said and name not in fields:
                reported.add(name)
                listed = ", ".join(tools) or "none"
                yield found("tool_unknown", "the prompt", f"it names {name!r}; the tools are {listed}")


def _nearest(name: str, tools: Mapping[str, Sequence[str]]) -> str | None:
    plain = {tool.replace("_", "").casefold(): tool for tool in tools}
    near = difflib.get_close_matches(name.replace("_", "").casefold(), plain, n=1, cutoff=0.75)
    if near:
        return plain[near[0]]
    words = set(name.casefold().split("_"))
    shared = [tool for tool in tools if "_" in name and len(words & set(tool.casefold().split("_"))) > 0]
    return shared[0] if len(shared) == 1 else None


def check_leaks(stage: Stage, told: Sequence[Told], plays: Sequence[Play]) -> Iterator[Finding]:
    """The answer in what the model reads first, although the gold solution asks a tool for it."""
    by_task = {one.task.id: one for one in told}
    pairs = [(by_task[p.task.id], p) for p in plays if p.task.id in by_task and p.trajectory is not None]
    full = [last_words(play.trajectory) for _, play in pairs if play.trajectory is not None]
    head, tail = _around(full)
    answers = [text[len(head) : len(text) - len(tail)].strip() for text in full]
    if len(pairs) < 2 or any(not answer for answer in answers):
        return
    inside = [_holds(one, answer) for (one, _), answer in zip(pairs, answers, strict=True)]
    if sum(inside) < 0.8 * len(pairs):
        return
    others = [_holds(one, a) for one, _ in pairs for a in set(answers) if not _same(one, pairs, answers, a)]
    choice = bool(others) and sum(others) > 0.3 * len(others)
    calls = all(any(m.tool_calls for m in p.trajectory.messages) for _, p in pairs if p.trajectory)
    alone = [
        stage.play("answer alone", play.split, play.task, saying((), answer))
        for (_, play), answer in list(zip(pairs, full, strict=True))[:4]
    ]
    _, first = pairs[0]
    nothing = stage.play("idle", first.split, first.task, saying((), ""))
    if not all(map(_won, alone)) or _won(nothing) or (len(set(answers)) == 1 and not calls):
        return
    where = "the prompt" if _in_opening(pairs[0][0], answers[0]) else "the tools' descriptions"
    what = f"{where} holds the answer {answers[0]!r:.40} of task {pairs[0][1].task.id}"
    rivals = _has_rivals(pairs[0][0], answers[0]) and not _announced(pairs[0][0], answers[0])
    if calls and (_printed(pairs, answers) or (not choice and not rivals)):
        yield found("answer_leaked", where, what)
    else:
        yield found("answer_in_prompt", where, what)


def _won(play: Play | None) -> bool:
    return play is not None and play.score is not None and play.score.success is True


def _announced(one: Told, answer: str) -> bool:
    """Whether a word such as `expected` stands right before the answer."""
    before = rf"(?:{'|'.join(GIVEAWAYS)})[^.?!\n]{{0,20}}(?<!\w){re.escape(answer)}(?!\w)"
    return re.search(before, one.text, re.IGNORECASE) is not None


def _printed(pairs: Sequence[tuple[Told, Play]], answers: Sequence[str]) -> bool:
    """Whether one field is the answer of every task, stands with its name in the prompt (`gross: 12`), and is
    nothing that the gold solution takes from there into a call."""
    rows = [(one, play, answer) for (one, play), answer in zip(pairs, answers, strict=True)]
    return any(all(_prints(one, play, key, answer) for one, play, answer in rows) for key in rows[0][0].task)


def _prints(one: Told, play: Play, key: str, answer: str) -> bool:
    label = rf"(?<!\w){re.escape(key)}\W{{1,4}}{re.escape(answer)}(?!\w)"
    if str(one.task.get(key)) != answer or re.search(label, one.text, re.IGNORECASE) is None:
        return False
    given = [] if play.trajectory is None else [c.arguments for c in calls_of(play.trajectory)]
    return not any(str(value) == answer for arguments in given for value in arguments.values())


def _has_rivals(one: Told, answer: str) -> bool:
    """Whether the request holds other numbers, if the answer is one: then it may be a choice."""
    request = one.opening[-1].content
    return answer.isdecimal() and any(number != answer for number in re.findall(r"\d+", request))


def _same(one: Told, pairs: Sequence[tuple[Told, Play]], answers: Sequence[str], answer: str) -> bool:
    return any(told is one and own == answer for (told, _), own in zip(pairs, answers, strict=True))


def _holds(one: Told, answer: str) -> bool:
    return _word(answer, one.text)


def _in_opening(one: Told, answer: str) -> bool:
    return _word(answer, "\n".join(message.content for message in one.opening))


def _word(answer: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text, re.IGNORECASE) is not None


def sought_words(texts: Sequence[str], tasks: Sequence[Task]) -> list[str]:
    """Words that a reward may look for: short texts in its code, the answers of tasks where they are few."""
    answers = {str(task.fields[key]) for task in tasks for key in ANSWERS if key in task.fields}
    few = sorted(answers) if 2 * len(answers) <= len(tasks) else []
    return [text for text in dict.fromkeys([*texts, *few]) if PLAIN.fullmatch(text)]


def calls_of(trajectory: Trajectory) -> list[Call]:
    return [move for move in replayed(trajectory) if isinstance(move, Call)]


def final_say(trajectory: Trajectory) -> str | None:
    """The gold solution's last reply, if it ends with one."""
    moves = replayed(trajectory)
    return moves[-1].text if moves and isinstance(moves[-1], Say) else None
