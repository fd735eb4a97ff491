"""Optional arguments of a listing tool: an order and filters, and how a user asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tables import Table, pseudo_word
from tools import parameter
from words import ADJECTIVES, NOUNS, VERBS


@dataclass(frozen=True)
class Options:
    """Optional parameters of a listing tool, what the user wants of them, in words and as arguments.

    listed: the rows that such a call returns.
    """

    properties: dict[str, dict[str, Any]]
    words: tuple[str, ...]
    best: str
    needs: tuple[str, ...]
    chosen: dict[str, Any]
    listed: Table


def make_options(rng: Random, table: Table, taken: set[str], said: set[str]) -> Options:
    """An order by one unit of `table`, and filters, of which few requests name more than one.

    said: words of the request that mean something else.
    """
    unit = rng.choice([kind.removeprefix("number:") for kind in table.kinds if kind.startswith("number:")])
    lowest = rng.random() < 0.9
    sort = parameter(rng, taken)[0]
    others = [rng.choice(NOUNS) for _ in range(rng.randint(1, 2))]
    properties = {sort: choice_of(rng, [*others, unit])}
    chosen: dict[str, Any] = {sort: unit}
    words = [word for word in filter_words(rng, table) if word not in said]
    asked = rng.sample(words, min(len(words), rng.choices([0, 1, 2, 3], [4, 4, 2, 1])[0]))
    if rng.random() < 0.75:  # one list of all filters
        name = parameter(rng, taken)[0]
        properties[name] = {"type": "array", "items": {"type": "string", "enum": words}}
        if rng.random() < 0.5:
            properties[name]["description"] = f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
        if asked:
            chosen[name] = asked
    else:  # a parameter for each
        free = list(words)
        while free:
            group, free = free[:2], free[2:]
            if len(set(group) & set(asked)) == 2:
                asked.remove(group[1])
            name = parameter(rng, taken)[0]
            properties[name] = choice_of(rng, group, rng.choice(["any", "all", ""]))
            if word := next((word for word in group if word in asked), None):
                chosen[name] = word
    listed = table.only([w for w in asked if w in table.words()]).ordered(unit, lowest=lowest)
    if not listed.ids:
        listed = table.ordered(unit, lowest=lowest)
    best = f"{'lowest' if lowest else 'highest'} {unit}"
    return Options(properties, tuple(words), best, tuple(asked), chosen, listed)


def choice_of(rng: Random, values: list[str], default: str = "") -> dict[str, Any]:
    """The schema of one of a few words; `default`, or one of the words, is what it is if left out."""
    values = list(dict.fromkeys([default, *values] if default else values))
    if not default:
        rng.shuffle(values)
    made: dict[str, Any] = {"type": "string", "enum": values}
    if rng.random() < 0.5:
        made["description"] = f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    if default or rng.random() < 0.5:
        made["default"] = default or values[0]
    return made


def filter_words(rng: Random, table: Table) -> list[str]:
    """Two to six things that a row can be: words of the table and others, of one word or two."""
    words = [word for word in table.words() if rng.random() < 0.6]
    wanted = rng.randint(2, 6)
    while len(words) < wanted:
        style = rng.random()
        if style < 0.35:
            words.append(rng.choice(ADJECTIVES))
        elif style < 0.55:
            words.append(rng.choice(NOUNS))
        elif style < 0.65:
            words.append(pseudo_word(rng))
        elif style < 0.8:
            words.append(f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}")
        elif style < 0.9:
            words.append(f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}")
        else:  # two that differ in one word
            noun, pair = rng.choice(NOUNS), rng.sample(ADJECTIVES, 2)
            words += [f"{pair[0]} {noun}", f"{pair[1]} {noun}"]
        words = list(dict.fromkeys(words))
    rng.shuffle(words)
    return words


def say_need(rng: Random, word: str) -> str:
    style = rng.random()
    if style < 0.4:
        return word
    if style < 0.7:
        return rng.choice(
            [f"{word} only", f"must be {word}", f"it must be {word}", f"but {word}", f"with {word}"]
        )
    return rng.choice(
        [
            f"{rng.choice(VERBS)} {word}",
            f"{word} {rng.choice(NOUNS)}",
            f"{word} {rng.choice(ADJECTIVES)}",
            f"a {rng.choice(NOUNS)} {word}",
            f"it must {rng.choice(VERBS)} {word}",
            f"able to {rng.choice(VERBS)} {word}",
        ]
    )
