"""Random tool dialogues: each a list of (text, trained) pieces in Qwen2.5's chat template.

A user names values, tools are called with them and with what other tools returned, a table comes back, the
first row is taken. What makes that row the right one, an order and filters, are optional arguments.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from tables import Table, make_table, pseudo_word
from words import ADJECTIVES, NOUNS, PEOPLE, PLACES, VERBS

Role = (
    Literal["said", "name"] | None
)  # by the assistant (the name of a tool apart), or by others: not trained
Piece = tuple[str, Role]

TOOLS_BEFORE = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


class Dialogue:
    """Builds the pieces of one dialogue, exactly as the template renders them."""

    def __init__(self, system: str, tools: list[dict[str, Any]] | None = None) -> None:
        text = f"<|im_start|>system\n{system}"
        if tools:
            text += (
                TOOLS_BEFORE
                + "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
                + TOOLS_AFTER
            )
        self.pieces: list[Piece] = [(text + "<|im_end|>\n", None)]

    def user(self, text: str) -> None:
        self.pieces.append((f"<|im_start|>user\n{text}<|im_end|>\n", None))

    def tool(self, text: str) -> None:
        self.user(f"<tool_response>\n{text}\n</tool_response>")

    def assistant(
        self, text: str = "", thought: str | None = None, call: tuple[str, dict[str, Any]] | None = None
    ) -> None:
        self.pieces.append(("<|im_start|>assistant\n", None))
        self.pieces.append((("" if thought is None else f"<think>\n{thought}\n</think>\n\n") + text, "said"))
        if call:
            arguments = json.dumps(call[1], ensure_ascii=False)
            self.pieces.append(('<tool_call>\n{"name": "', "said"))
            self.pieces.append((call[0], "name"))
            self.pieces.append((f'", "arguments": {arguments}}}\n</tool_call>', "said"))
        self.pieces.append(("<|im_end|>", "said"))
        self.pieces.append(("\n", None))


# --- tools


def schema(name: str, description: str, parameters: list[tuple[str, str, str]]) -> dict[str, Any]:
    properties = {p: {"type": t, "description": d} if d else {"type": t} for p, t, d in parameters}
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


def pick_task(rng: Random, most: int, careful: float = 0.8) -> list[Piece]:
    """Look something up (0-2 times), list candidates, act on the first, report.

    The careful share passes the optional arguments that the request asks for; the others leave them out.
    """
    lookups = rng.choices([0, 1, 2], [2, 6, 1])[0]
    names: set[str] = set()
    while len(names) < lookups + 3:
        names.add(tool_name(rng))
    order = list(names)
    rng.shuffle(order)
    taken: set[str] = set()
    phrases: list[str | int] = [
        number(rng) if rng.random() < 0.15 else phrase(rng) for _ in range(lookups + 1)
    ]
    looked = [value(rng) for _ in range(lookups)]
    look_tools = [(order[i], parameter(rng, taken, phrases[1 + i])) for i in range(lookups)]
    listing = [parameter(rng, taken, phrases[0]), *(parameter(rng, taken) for _ in looked)]
    if lookups == 1 and rng.random() < 0.5:  # only what was looked up is needed to list
        listing, phrases = listing[1:], phrases[1:]
    direct = phrases[: len(phrases) - lookups]

    table = make_table(rng, rng.randint(max(2, most - 3), most))
    asked, options, chosen = make_options(rng, table, taken)
    lister = schema(order[lookups], describe(rng), listing)
    lister["function"]["parameters"]["properties"] |= options
    act, other = parameter(rng, set()), parameter(rng, set())
    tools = [schema(name, describe(rng), [p]) for name, p in look_tools]
    extras = [schema(order[lookups + 1], describe(rng), [act])]
    if rng.random() < 0.6:
        extras.insert(rng.randint(0, 1), schema(order[lookups + 2], describe(rng), [other]))
    tools += [lister, *extras]
    if rng.random() < 0.1:  # tools are mostly listed in the order of their use
        rng.shuffle(tools)

    dialogue = Dialogue(greeting(rng), tools)
    verb = rng.choice(VERBS).capitalize()
    labels = [*(p for p, _, _ in listing[: len(direct)]), *(p for _, (p, _, _) in look_tools)]
    dialogue.user(request(rng, verb, labels, phrases, asked.text))
    for (name, (param, _, _)), text, result in zip(look_tools, phrases[len(direct) :], looked, strict=True):
        dialogue.assistant(call=(name, {param: text}))
        dialogue.tool(result)
    arguments = dict(zip([p for p, _, _ in listing], [*direct, *looked], strict=True))
    if rng.random() < careful:
        arguments |= chosen
        table = table.only(asked.words).ordered(asked.unit, lowest=asked.lowest)
    dialogue.assistant(call=(order[lookups], arguments))
    dialogue.tool(table.text())
    first = table.ids[0]
    dialogue.assistant(call=(order[lookups + 1], {act[0]: first}))
    dialogue.tool(rng.choice(["ok", f"ok {first}", "done", f"{rng.choice(VERBS)} {first}"]))
    dialogue.assistant(rng.choice([f"Done: {first}.", f"{first} it is.", f"{verb}: {first}."]))
    return dialogue.pieces


@dataclass(frozen=True)
class Asked:
    """What makes a row the right one, and how the user says so."""

    text: str
    unit: str
    lowest: bool
    words: tuple[str, ...]


def make_options(
    rng: Random, table: Table, taken: set[str]
) -> tuple[Asked, dict[str, dict[str, Any]], dict[str, str | int]]:
    """A need that some row of `table` meets, optional parameters to say it with, and their right values."""
    unit = rng.choice([kind.removeprefix("number:") for kind in table.kinds if kind.startswith("number:")])
    lowest = rng.random() < 0.9
    row = rng.choice(table.cells)
    words = [str(cell) for kind, cell in zip(table.kinds, row, strict=True) if kind == "word"]
    words = [word for word in dict.fromkeys(words) if rng.random() < 0.6]
    options: dict[str, dict[str, Any]] = {}
    chosen: dict[str, str | int] = {}
    for right in [unit, *words]:
        name = parameter(rng, taken)[0]
        wrong = [rng.choice([*NOUNS, "any", "all"]) for _ in range(rng.randint(1, 2))]
        values = [*dict.fromkeys([right, *(word for word in wrong if word != right)])]
        rng.shuffle(values)
        options[name] = {"type": "string", "enum": values}
        if rng.random() < 0.5:
            options[name]["default"] = next((v for v in values if v != right), values[0])
        chosen[name] = right
    parts = [f"{'lowest' if lowest else 'highest'} {unit}"]
    parts += [rng.choice([word, f"{word} only", f"must be {word}"]) for word in words]
    return Asked(rng.choice([", ", " and "]).join(parts), unit, lowest, tuple(words)), options, chosen


def request(rng: Random, verb: str, labels: list[str], phrases: list[str | int], asked: str) -> str:
    """The user's words: phrases named by their parameters, in any order, or unnamed, in the order of use."""
    noun = rng.choice(NOUNS)
    if rng.random() < 0.5:
        said = [f"{label} {text}" for label, text in zip(labels, phrases, strict=True)]
        rng.shuffle(said)
        spoken = rng.choice([", ", " "]).join(said)
    else:
        spoken = " ".join([rng.choice(["for", "at", "in", "on", "to", "with", "of"]), *map(str, phrases)])
    return rng.choice(
        [
            f"{verb} the {noun} with the {asked} {spoken}.",
            f"{verb} a {noun} {spoken}, {asked}.",
            f"{spoken}: {verb.lower()} the {asked} {noun}.",
            f"{verb} the {noun} {spoken}, {asked}.",
        ]
    )


def greeting(rng: Random) -> str:
    return rng.choice(
        ["You are an assistant.", "You help.", f"{rng.choice(VERBS).capitalize()} things.", "Use the tools."]
    )


def ask_task(rng: Random) -> list[Piece]:
    """One or two calls whose arguments are in the request; the answer repeats or adds what came back."""
    names: set[str] = set()
    while len(names) < 3:
        names.add(tool_name(rng))
    order = list(names)
    taken: set[str] = set()
    values = [
        [number(rng) if rng.random() < 0.2 else phrase(rng) for _ in range(rng.randint(1, 2))] for _ in order
    ]
    parameters = [[parameter(rng, taken, value) for value in row] for row in values]
    tools = [schema(name, describe(rng), ps) for name, ps in zip(order, parameters, strict=True)]
    dialogue = Dialogue(rng.choice(["You are an assistant.", "Use the tools.", "You help."]), tools)
    if rng.random() < 0.12:
        dialogue.user(
            rng.choice(
                [
                    f"What do you think of {phrase(rng)}?",
                    "Hello.",
                    "Thank you.",
                    f"Tell me a story about a {rng.choice(NOUNS)}.",
                ]
            )
        )
        dialogue.assistant(rng.choice(["I have no tool for that.", "Hello.", "You are welcome."]))
        return dialogue.pieces
    which = rng.randrange(3)
    name, ps = order[which], parameters[which]
    given = {p: v for (p, _, _), v in zip(ps, values[which], strict=True)}
    dialogue.user(
        rng.choice(["Please ", "", "Can you "])
        + name.replace("_", " ")
        + " "
        + ", ".join(f"{p} {v}" for p, v in given.items())
        + "."
    )
    dialogue.assistant(call=(name, given))
    if rng.random() < 0.5:
        result = value(rng)
        dialogue.tool(result)
        dialogue.assistant(rng.choice([f"{result}", f"It is {result}.", f"Result: {result}."]))
    else:
        a, b = rng.randint(1, 49), rng.randint(1, 49)
        dialogue.tool(f"{a} and {b}")
        dialogue.assistant(f"{a + b}", thought=f"{a}+{b}={a + b}")
    return dialogue.pieces
