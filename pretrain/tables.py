"""Tables of random columns: what tools list, in any order, or filtered and with the best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from words import ADJECTIVES, ENDINGS, NOUNS, PEOPLE, PREFIXED, RESERVED, SYLLABLES, UNITS

LETTERS = "ABCDEFGHJKLMNPRSTVWXYZ"


def pseudo_word(rng: Random) -> str:
    while True:
        word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3))) + rng.choice(ENDINGS)
        if word not in RESERVED:
            return word.capitalize() if rng.random() < 0.5 else word


@dataclass(frozen=True)
class Table:
    """Rows of cells: an id, then numbers with a unit, times (minutes) and words, shown as text lines."""

    ids: tuple[str, ...]
    kinds: tuple[str, ...]  # "number:$" | "time" | "word"
    cells: tuple[tuple[int | str, ...], ...]

    def row(self, index: int) -> str:
        cells = zip(self.kinds, self.cells[index], strict=True)
        return " ".join([self.ids[index], *(show(kind, cell) for kind, cell in cells)])

    def text(self) -> str:
        return "\n".join(self.row(index) for index in range(len(self.ids)))

    def words(self) -> list[str]:
        columns = [index for index, kind in enumerate(self.kinds) if kind == "word"]
        return list(dict.fromkeys(str(cells[index]) for cells in self.cells for index in columns))

    def only(self, words: Sequence[str]) -> Table:
        """The rows that have all of these words."""
        return self._pick([i for i, cells in enumerate(self.cells) if set(words) <= set(cells)])

    def ordered(self, unit: str, *, lowest: bool) -> Table:
        """The same rows by the numbers of one unit."""
        column = self.kinds.index(f"number:{unit}")
        order = sorted(range(len(self.ids)), key=lambda i: int(self.cells[i][column]), reverse=not lowest)
        return self._pick(order)

    def _pick(self, order: Sequence[int]) -> Table:
        ids, cells = tuple(self.ids[i] for i in order), tuple(self.cells[i] for i in order)
        return replace(self, ids=ids, cells=cells)


def show(kind: str, cell: int | str) -> str:
    if kind == "time":
        return f"{int(cell) // 60:02d}:{int(cell) % 60:02d}"
    if kind.startswith("number:"):
        unit = kind.removeprefix("number:")
        return f"{unit}{cell}" if unit in PREFIXED else f"{cell}{unit}"
    return str(cell)


def make_ids(rng: Random, count: int) -> tuple[str, ...]:
    style = rng.choices(["A12", "AB1", "name", "word", "pseudo"], [6, 1, 1, 1, 1])[0]
    seen: dict[str, None] = {}
    while len(seen) < count:
        if style == "A12":
            new = rng.choice(LETTERS) + f"{rng.randint(10, 99)}"
        elif style == "AB1":
            new = rng.choice(LETTERS) + rng.choice(LETTERS) + str(rng.randint(1, 9))
        elif style in ("name", "word"):
            new = rng.choice(PEOPLE if style == "name" else NOUNS)
        else:
            new = pseudo_word(rng)
        seen[new] = None
    return tuple(seen)


def make_numbers(rng: Random, count: int) -> list[int]:
    """Distinct numbers of 1-4 digits, mostly of equal length, often close together."""
    digits = rng.choices([1, 2, 3, 4], [0.3, 2.5, 6, 0.7])[0]
    low, high = (1, 99) if digits == 1 else (10 ** (digits - 1), 10**digits - 1)
    if rng.random() < 0.35 and digits > 1:
        width = 10 ** (digits - 1) * rng.choice([1, 2, 3]) // 2
        low = rng.randint(low, max(low, high - width))
        high = max(low + 2 * count, low + width)
        high = min(high, 10**digits - 1)
        low = min(low, high - 2 * count) if digits > 1 else low
    return rng.sample(range(low, high + 1), count)


def make_table(rng: Random, rows: int) -> Table:
    units = rng.sample(UNITS, 2)  # of two units, the second is rarely used
    kinds = [f"number:{units[0]}"]
    for kind, chance in ((f"number:{units[1]}", 0.15), ("time", 0.55), ("word", 0.6), ("word", 0.2)):
        if rng.random() < chance:
            kinds.append(kind)
    rng.shuffle(kinds)
    columns: list[list[int | str]] = []
    for kind in kinds:
        if kind == "time":
            columns.append(
                [
                    rng.randint(5, 21) * 60 + rng.choice([0, 5, 10, 15, 20, 30, 40, 45, 50])
                    for _ in range(rows)
                ]
            )
        elif kind == "word":
            values = (
                rng.sample(ADJECTIVES, rng.randint(2, 3))
                if rng.random() < 0.55
                else [pseudo_word(rng) for _ in range(2)]
            )
            columns.append([rng.choice(values) for _ in range(rows)])
        else:
            columns.append(list(make_numbers(rng, rows)))
    cells = tuple(zip(*columns, strict=True))
    return Table(make_ids(rng, rows), tuple(kinds), cells)
