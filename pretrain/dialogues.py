"""Random tool dialogues: each a list of (text, trained) pieces in Qwen2.5's chat template.

A user names values, tools are called with them and with what other tools returned, a table comes back, the
first row is taken. What makes that row the right one, an order and filters, are optional arguments: the call
has those that the request names and leaves out the others.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, Literal

from options import Options, make_options, say_need
from tables import make_table
from tools import describe, number, parameter, phrase, schema, tool_names, value
from words import NOUNS, VERBS

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
