"""Random tools: names, descriptions, parameters, and values that go into them."""

from __future__ import annotations

from random import Random
from typing import Any

from tables import pseudo_word
from words import ADJECTIVES, NOUNS, PEOPLE, PLACES, VERBS


def schema(
    name: str,
    description: str,
    parameters: list[tuple[str, str, str]],
    optional: dict[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    properties = {p: {"type": t, "description": d} if d else {"type": t} for p, t, d in parameters}
    properties |= optional or {}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": [p for p, _, _ in parameters],
            },
        },
    }


def tool_name(rng: Random) -> str:
    style = rng.random()
    if style < 0.4:
        return rng.choice(VERBS)
    if style < 0.75:
        return f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}"
    return rng.choice(NOUNS) if style < 0.9 else pseudo_word(rng).lower()


def tool_names(rng: Random, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        names[tool_name(rng)] = None
    return list(names)


def describe(rng: Random) -> str:
    style = rng.random()
    if style < 0.5:
        return f"{rng.choice(VERBS).capitalize()} a {rng.choice(NOUNS)}."
    if style < 0.8:
        what = f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} of a {rng.choice(NOUNS)}"
        return f"{rng.choice(VERBS).capitalize()} the {what}."
    return f"{rng.choice(VERBS).capitalize()} {rng.choice(NOUNS)} by {rng.choice(NOUNS)}."


def phrase(rng: Random) -> str:
    """Something a user may mention that must be copied into an argument."""
    style = rng.random()
    if style < 0.3:
        return rng.choice(PLACES)
    if style < 0.45:
        return rng.choice(PEOPLE)
    if style < 0.65:
        return pseudo_word(rng).capitalize()
    if style < 0.8:
        return f"{rng.choice(['next', 'this', 'last', 'first', 'second'])} {rng.choice(NOUNS)}"
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def number(rng: Random) -> int:
    return rng.randint(1, 9999)


def value(rng: Random) -> str:
    """Something a tool may return that must be copied into the next call."""
    style = rng.random()
    if style < 0.4:
        return f"{rng.randint(2020, 2030)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    if style < 0.6:
        return f"{rng.choice(NOUNS)}-{rng.randint(10, 999)}"
    if style < 0.8:
        return str(rng.randint(100, 99999))
    return pseudo_word(rng)


def parameter(rng: Random, taken: set[str], of: str | int = "") -> tuple[str, str, str]:
    """Name, JSON type and description of a parameter that takes values like `of`."""
    while (
        name := rng.choice([*NOUNS, "id", "name", "key", "code", "place", "item", "who", "when", "area"])
    ) in taken:
        pass
    taken.add(name)
    described = rng.random() < 0.4
    return (
        name,
        "integer" if isinstance(of, int) else "string",
        f"{rng.choice(ADJECTIVES).capitalize()} {rng.choice(NOUNS)}." if described else "",
    )
