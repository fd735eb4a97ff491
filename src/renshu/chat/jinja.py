"""Chat templates: compiled once, rendered in a sandbox, with the date pinned.

The environment is the one transformers gives to templates (`trim_blocks`, `lstrip_blocks`, loop controls,
`tojson` without HTML escapes, `raise_exception`, `strftime_now`), so a template renders here as it does
there. Only the clock differs: `strftime_now` reads a fixed date, because a prompt that changes with the
calendar makes yesterday's training and today's evaluation two different experiments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from renshu.errors import TemplateError

PINNED_DATE = date(2024, 7, 26)  # what Llama's own templates print where no clock is available


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text for other trainers; we find it by position, so it only
    wraps.
    """

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, "indent": indent, **options})


@lru_cache(maxsize=64)
def _compile(source: str) -> tuple[jinja2.Template, frozenset[str]]:
    """The compiled template and the names it takes from outside."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    try:
        names = jinja2.meta.find_undeclared_variables(environment.parse(source))
        return environment.from_string(source), frozenset(names)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(
            f"The chat template is not valid Jinja (line {error.lineno}): {error.message}"
        ) from error


@dataclass(frozen=True)
class JinjaTemplate:
    """A chat template with the special tokens of its tokenizer. `today` is what its date functions see."""

    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    today: date = PINNED_DATE

    @property
    def dated(self) -> bool:
        """Whether the prompt holds a date (which we pin to `today`)."""
        return (
            bool(_compile(self.source)[1] & {"strftime_now", "date_string"}) or "strftime_now" in self.source
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        *,
        prompt: bool = False,
    ) -> str:
        """The text of a dialogue; with `prompt`, the assistant's header follows it.

        Raises TemplateError if the template refuses the messages, with what it said.
        """
        template, _ = _compile(self.source)
        try:
            return template.render(
                **self.special_tokens,
                messages=list(messages),
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=prompt,
                strftime_now=datetime.combine(self.today, time()).strftime,
            )
        except Exception as error:  # a template is a program: it may fail in any way
            roles = ", ".join(str(message["role"]) for message in messages)
            raise TemplateError(f"The chat template refused the messages ({roles}): {error}") from error
