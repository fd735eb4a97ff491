"""Labels such as `Answer:` that rewards look for, against what the prompt says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from renshu.check.findings import Finding, found
from renshu.check.wording import Told

WIDE = {":": "：", ",": "，", ";": "；", "!": "！"}  # the same mark, narrow and wide
NARROW = {wide: narrow for narrow, wide in WIDE.items()}
MARKED = re.compile(rf"([^\W\d_]{{2,12}})([{''.join([*WIDE, *NARROW])}])")
SPACE = r"(?:\\s[*+?]?| [*+?]?)*"
CAPTURED = re.compile(
    rf"([^\W\d_](?:[^\W\d_]| (?=[^\W\d_])){{1,30}}){SPACE}(?:[:：=]|\[[^\]]*[:：][^\]]*\]){SPACE}\("
)


def check_labels(
    told: Sequence[Told], texts: Mapping[str, str], others: Mapping[str, str]
) -> Iterator[Finding]:
    """Labels in another width than the prompt has them, and labels that nobody asks for.

    texts: literals of the deciding functions → who has them; others: those of tools and set-up, whose words a
    reward may look for, too.
    """
    prompt = "\n".join(one.text for one in told).casefold()
    yield from _widths(prompt, texts)
    said = _plain(prompt + "\n" + "\n".join(others)).casefold()
    for text, owner in texts.items():
        for label in dict.fromkeys(CAPTURED.findall(_plain(text)) if "\\" in text or "[" in text else ()):
            if label.casefold() not in said:
                what = f"it looks for {label!r} before the answer, which nothing in the prompt asks for"
                yield found("format_not_asked", owner, what, "warning")


def _widths(prompt: str, texts: Mapping[str, str]) -> Iterator[Finding]:
    """`答案：` where the prompt says `答案:`; nothing where the code knows both, or makes them alike."""
    known = "".join(_plain(text) for text in texts)
    if "NFKC" in known or "NFKD" in known:
        return
    for text, owner in texts.items():
        for word, mark in MARKED.findall(_plain(text)):
            other = {**WIDE, **NARROW}[mark]
            asked = _has(prompt, word, other) and not _has(prompt, word, mark)
            if asked and other not in known:
                what = (
                    f"it looks for {word + mark!r}, but the prompt says {word + other!r}: another character"
                )
                yield found("format_not_asked", owner, what)


def _has(prompt: str, word: str, mark: str) -> bool:
    return re.search(rf"{re.escape(word.casefold())}\s*{re.escape(mark)}", prompt) is not None


def _plain(text: str) -> str:
    """A regular expression with its escaped characters as they are, without word boundaries."""
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text)
    return re.sub(r"\\([bBAZ]|(?=[^\w\s]))", "", text)
