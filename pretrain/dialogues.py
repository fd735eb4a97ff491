"""Random tool dialogues: each a list of (text, trained) pieces in Qwen2.5's chat template.

A user names values, tools are called with them and with what other tools returned, a table comes back, the
first row is taken. What makes that row the right one, an order and filters, are optional arguments: the call
has those that the request names and leaves out the others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from tables import Table, make_table, pseudo_word
from words import ADJECTIVES, NOUNS, PEOPLE, PLACES, VERBS

Role = (
    Literal["said", "free"] | None
)  # by the assistant ("free": nothing foretells it), or others: not trained
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
        self,
        text: str = "",
        thought: str | None = None,
        call: tuple[str, dict[str, Any]] | None = None,
        role: Role = "said",
    ) -> None:
        self.pieces.append(("<|im_start|>assistant\n", None))
        self.pieces.append((("" if thought is None else f"<think>\n{thought}\n</think>\n\n") + text, role))
        if call:
            arguments = json.dumps(call[1], ensure_ascii=False)
            self.pieces.append(('<tool_call>\n{"name": "', "said"))
            self.pieces.append((call[0], "free"))
            self.pieces.append((f'", "arguments": {arguments}}}\n</tool_call>', "said"))
        self.pieces.append(("<|im_end|>", "said"))
        self.pieces.append(("\n", None))


# --- tools


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


def pick_task(rng: Random, most: int) -> list[Piece]:
    """Look something up (0-2 times), list candidates in the order and with the filters asked for, act on the
    first, report.
    """
    lookups = rng.choices([0, 1, 2], [2, 6, 1])[0]
    order = tool_names(rng, lookups + 3)
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
    options = make_options(rng, table, taken, {word for text in phrases for word in str(text).split()})
    lister = schema(order[lookups], describe(rng), listing, options.properties)
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
    dialogue.user(request(rng, verb, labels, phrases, options))
    for (name, (param, _, _)), text, result in zip(look_tools, phrases[len(direct) :], looked, strict=True):
        dialogue.assistant(call=(name, {param: text}))
        dialogue.tool(result)
    arguments = dict(zip([p for p, _, _ in listing], [*direct, *looked], strict=True))
    dialogue.assistant(call=(order[lookups], arguments | options.chosen))
    dialogue.tool(options.listed.text())
    first = options.listed.ids[0]
    dialogue.assistant(call=(order[lookups + 1], {act[0]: first}))
    dialogue.tool(rng.choice(["ok", f"ok {first}", "done", f"{rng.choice(VERBS)} {first}"]))
    dialogue.assistant(rng.choice([f"Done: {first}.", f"{first} it is.", f"{verb}: {first}."]), role="free")
    return dialogue.pieces


def list_task(rng: Random) -> list[Piece]:
    """One call that lists: the drill for optional arguments, short, so that many are seen."""
    taken: set[str] = set()
    text = phrase(rng)
    needed = parameter(rng, taken, text)
    options = make_options(rng, make_table(rng, 2), taken, set(text.split()))
    names = tool_names(rng, 2)
    tools = [schema(names[0], describe(rng), [needed], options.properties)]
    if rng.random() < 0.3:
        tools.append(schema(names[1], describe(rng), [parameter(rng, set())]))
    dialogue = Dialogue(greeting(rng), tools)
    dialogue.user(request(rng, rng.choice(VERBS).capitalize(), [needed[0]], [text], options))
    dialogue.assistant(call=(names[0], {needed[0]: text} | options.chosen))
    return dialogue.pieces


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


def request(rng: Random, verb: str, labels: list[str], phrases: list[str | int], options: Options) -> str:
    """The user's words: phrases named by their parameters, in any order, or unnamed, in the order of use;
    what the row must be; and at times a limit, which no argument can say. No filter is named by chance.
    """
    unasked = [word for word in options.words if word not in options.needs]
    for _ in range(50):
        text = _request(rng, verb, labels, phrases, options)
        if not any(f" {word} " in f" {text.replace(',', ' ').replace('.', ' ')} " for word in unasked):
            break
    return text


def _request(rng: Random, verb: str, labels: list[str], phrases: list[str | int], options: Options) -> str:
    noun = rng.choice(NOUNS)
    if rng.random() < 0.5:
        said = [f"{label} {text}" for label, text in zip(labels, phrases, strict=True)]
        rng.shuffle(said)
        spoken = rng.choice([", ", " "]).join(said)
    else:
        spoken = " ".join([rng.choice(["for", "at", "in", "on", "to", "with", "of"]), *map(str, phrases)])
    needs = [say_need(rng, word) for word in options.needs]
    if rng.random() < 0.25:
        limit = f"{options.best.split()[-1]}{rng.randint(2, 999)}"
        needs.insert(rng.randint(0, len(needs)), f"{rng.choice(['under', 'below', 'for less than'])} {limit}")
    asked = rng.choice([", ", ", ", " and "]).join(["", *needs]) if needs else ""
    best = options.best
    return rng.choice(
        [
            f"{verb} the {noun} with the {best} {spoken}{asked}.",
            f"{verb} a {noun} {spoken}, {best}{asked}.",
            f"{spoken}: {verb.lower()} the {best} {noun}{asked}.",
            f"{verb} the {noun} {spoken}, {best}{asked}.",
            f"{spoken}, {verb.lower()} the {noun} with the {best}{asked}.",
        ]
    )


def greeting(rng: Random) -> str:
    return rng.choice(
        ["You are an assistant.", "You help.", f"{rng.choice(VERBS).capitalize()} things.", "Use the tools."]
    )


def ask_task(rng: Random) -> list[Piece]:
    """One or two calls whose arguments are in the request; the answer repeats or adds what came back."""
    order = tool_names(rng, 3)
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
        dialogue.assistant(rng.choice([f"{result}", f"It is {result}.", f"Result: {result}."]), role="free")
    else:
        a, b = rng.randint(1, 49), rng.randint(1, 49)
        dialogue.tool(f"{a} and {b}")
        dialogue.assistant(f"{a + b}", thought=f"{a}+{b}={a + b}")
    return dialogue.pieces
