"""`@tool` marks what a model may call; `ToolSpec` is one such function, ready to be shown and called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from renshu.errors import ToolDefinitionError
from renshu.tools.call import ToolResult, run
from renshu.tools.kinds import Mismatch, Schema
from renshu.tools.schema import Definition, define

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Options:
    """How a tool is run. timeout: seconds, None for no limit. isolate: in a process of its own, killed on
    timeout.
    """

    timeout: float | None = None
    isolate: bool = False


@overload
def tool(function: F) -> F: ...
@overload
def tool(*, timeout: float | None = None, isolate: bool = False) -> Callable[[F], F]: ...
def tool(
    function: F | None = None, *, timeout: float | None = None, isolate: bool = False
) -> F | Callable[[F], F]:
    """Mark a function or method as a tool: `@tool`, or `@tool(timeout=5, isolate=True)`.

    timeout: seconds. An async tool is cancelled; a sync one is abandoned in its thread, since it cannot be
        stopped, or killed if `isolate`.
    isolate: run in a forked process, so that the tool cannot change the environment's state; only its answer
        comes back.

    Raises ToolDefinitionError for options that make no sense.
    """
    if timeout is not None and timeout <= 0:
        raise ToolDefinitionError(
            f"@tool(timeout={timeout}): a timeout is a positive number of seconds, or None"
        )

    def mark(function: F) -> F:
        if isolate and inspect.iscoroutinefunction(function):
            raise ToolDefinitionError(
                f"tool {function.__name__}: isolate=True is for sync tools; async ones are cancelled"
            )
        function.__renshu_tool__ = Options(timeout, isolate)  # type: ignore[attr-defined]
        return function

    return mark if function is None else mark(function)


def is_tool(function: object) -> bool:
    """Whether `@tool` marks this function or method."""
    return hasattr(function, "__renshu_tool__")


@dataclass(frozen=True)
class ToolSpec:
    """A callable tool. `function` may be a bound method: then the call acts on its object."""

    function: Callable[..., Any]
    definition: Definition
    options: Options = Options()

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> ToolSpec:
        """Read signature and docstring of a function or bound method, marked by `@tool` or not.

        Raises ToolDefinitionError naming the tool and the parameter that cannot become a schema.
        """
        plain = getattr(function, "__func__", function)
        definition = define(plain, inspect.ismethod(function))
        return cls(function, definition, getattr(function, "__renshu_tool__", Options()))

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def schema(self) -> Schema:
        """`{"type": "function", "function": {"name", "description", "parameters"}}`; not to be changed."""
        return self.definition.schema

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Check, convert and run. A bad call, a tool's own error and a timeout are results with `ok=False`.

        Raises InfrastructureError if the machine failed, ContractError if the tool's answer has no text form.
        """
        try:
            converted = self.definition.arguments.convert(arguments, "")
        except Mismatch as error:
            return ToolResult(f"error: {self.name}: {error}", ok=False, error_kind="invalid_arguments")
        return await run(
            self.name, self.function, converted, timeout=self.options.timeout, isolate=self.options.isolate
        )
