"""What can be read off a user's functions: the texts they compare with, and habits that go wrong.

Literals are taken from code objects, which lambdas and generated functions have, too; only `except` needs the
source.
"""

from __future__ import annotations

import ast
import datetime
import dis
import inspect
import random
import re
import sysconfig
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from renshu.check.findings import Finding, found
from renshu.envs.environment import Environment
from renshu.envs.tasks import GeneratedSplit

LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))
CLOCKS = (
    *(datetime.date.today, datetime.datetime.today, datetime.datetime.now, datetime.datetime.utcnow),
    *(time.time, time.time_ns),
)
BROAD = frozenset({"Exception", "BaseException"})


def judges(environment: type[Environment]) -> list[FunctionType]:
    """The functions that decide: rewards and success."""
    marked = [
        function
        for name in dir(environment)
        if isinstance(function := inspect.getattr_static(environment, name), FunctionType)
        and (hasattr(function, "__renshu_reward__") or hasattr(function, "__renshu_success__"))
    ]
    return [*marked, *(f for f in getattr(environment, "judged_by", ()) if isinstance(f, FunctionType))]


def acting(environment: type[Environment]) -> list[FunctionType]:
    """The other functions of the user's that an episode runs: set-up, tools, the drawing of tasks."""
    functions = [getattr(spec.function, "__func__", spec.function) for spec in environment().tools()]
    if environment.setup is not Environment.setup:
        functions.append(environment.setup)
    if environment.tasks is not None and isinstance(environment.tasks.train, GeneratedSplit):
        functions.append(environment.tasks.train.fields)
    return [function for function in functions if isinstance(function, FunctionType)]


def check_code(environment: type[Environment]) -> Iterator[Finding]:
    """Habits in the code of rewards, success, tools and set-up."""
    deciding = judges(environment)
    for function in deciding:
        for name in _uncalled(function, environment):
            yield found(
                "not_called", function.__qualname__, f"it asks whether {name} is true, without calling it"
            )
        if _swallows(function):
            yield found("errors_swallowed", function.__qualname__, "it catches every error and goes on")
    tools = {getattr(spec.function, "__func__", spec.function) for spec in environment().tools()}
    for function in (*deciding, *acting(environment)):
        where = function.__qualname__
        used = [_resolved(function, chain) for chain in _chains(function.__code__)]
        if any(_draws(value) for value in used):
            yield found("random_unseeded", where, "it draws from the module `random`")
        if any(value in CLOCKS for value in used if callable(value)):
            yield found("clock_read", where, "it reads the clock")
        if any(value is time.sleep for value in used) and function in tools:
            asleep = "tool_blocks" if inspect.iscoroutinefunction(function) else "tool_slow"
            yield found(asleep, where, "it calls time.sleep")


def _chains(code: CodeType) -> Iterator[list[str]]:
    """Names as they are written from a global on: `datetime.date.today` → three of them."""
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain.append(str(instruction.argval))
        elif instruction.opname != "CACHE":
            yield from [chain] if chain else []
            chain = [str(instruction.argval)] if instruction.opname == "LOAD_GLOBAL" else []
    yield from [chain] if chain else []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _chains(constant)


def _resolved(function: FunctionType, chain: Sequence[str]) -> Any:
    """What the names stand for, if they can be followed through modules and classes."""
    value: Any = function.__globals__.get(chain[0])
    for name in chain[1:]:
        if not isinstance(value, ModuleType | type):
            return None
        value = getattr(value, name, None)
    return value


def _draws(value: Any) -> bool:
    """Whether this is a function of the module `random` that draws from its hidden generator."""
    hidden = random._inst
    return getattr(value, "__self__", None) is hidden and value != random.seed


def literals(environment: type[Environment], functions: Sequence[FunctionType]) -> dict[str, str]:
    """Every text in the functions and in what they call or name in the user's own code → who has it."""
    texts: dict[str, str] = {}
    seen: set[int] = set()
    for function in functions:
        _collect(function, environment, function.__qualname__, texts, seen)
    return texts


def names_used(environment: type[Environment]) -> set[str] | None:
    """All texts and parameters of the user's functions, among them the fields that they read by name.

    None where code hands all fields of a task on: then each of them may be read.
    """
    own = [
        value
        for owner in environment.__mro__
        if owner.__module__ not in ("renshu.envs.environment", "renshu.envs.functions")
        for value in vars(owner).values()
        if isinstance(value, FunctionType)
    ]
    functions = list(dict.fromkeys([*own, *judges(environment), *acting(environment)]))
    if any("fields" in _names(function.__code__) for function in functions):
        return None
    parameters = {name for function in functions for name in inspect.signature(function).parameters}
    return parameters | set(literals(environment, functions))


def _collect(
    value: Any, environment: type[Environment], owner: str, texts: dict[str, str], seen: set[int]
) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, str):
        texts.setdefault(value, owner)
    elif isinstance(value, re.Pattern):
        texts.setdefault(str(value.pattern), owner)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _collect(item, environment, owner, texts, seen)
    elif isinstance(value, partial):
        _collect(value.func, environment, owner, texts, seen)
    elif isinstance(value, FunctionType) and not value.__code__.co_filename.startswith(LIBRARIES):
        for constant in _constants(value.__code__):
            if constant != value.__doc__:
                texts.setdefault(constant, owner)
        cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        named = [value.__globals__.get(name) for name in _names(value.__code__)]
        own = [inspect.getattr_static(environment, name, None) for name in _names(value.__code__)]
        for item in (*cells, *named, *own):
            if not isinstance(item, ModuleType | type):
                _collect(item, environment, owner, texts, seen)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _constants(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from (item for item in constant if isinstance(item, str))
        elif isinstance(constant, CodeType):
            yield from _constants(constant)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _source(function: Callable[..., Any]) -> Iterator[ast.AST]:
    """All nodes of the function's source; none where there is no source, or not of the function alone."""
    try:
        yield from ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
    except (OSError, SyntaxError, TypeError):
        return


def _uncalled(function: FunctionType, environment: type[Environment]) -> list[str]:
    """Functions whose truth is asked instead of their result: `if self.solved`.

    Not those that are called beside it, which may well be missing: `judge and judge(text)`.
    """
    asked: list[ast.expr] = []
    called: set[str] = set()
    for node in _source(function):
        if isinstance(node, ast.Call):
            called.add(ast.unparse(node.func))
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            asked.append(node.test)
        elif isinstance(node, ast.BoolOp):
            asked += node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            asked.append(node.operand)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bool":
            asked += node.args
    names = [ast.unparse(node) for node in asked if _is_method(node, function, environment)]
    return [name for name in dict.fromkeys(names) if name not in called]


def _is_method(node: ast.expr, function: FunctionType, environment: type[Environment]) -> bool:
    """Whether `self.name` or a global name stands for a function of the user's."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        first = function.__code__.co_varnames[:1] == (node.value.id,)
        return first and isinstance(inspect.getattr_static(environment, node.attr, None), FunctionType)
    local = function.__code__.co_varnames + function.__code__.co_freevars
    return (
        isinstance(node, ast.Name)
        and node.id not in local
        and isinstance(function.__globals__.get(node.id), FunctionType)
    )


def _swallows(function: Callable[..., Any]) -> bool:
    """Whether a handler for every error neither raises nor leaves None, which would say "does not apply"."""
    handlers = [node for node in _source(function) if isinstance(node, ast.ExceptHandler)]
    return any(_is_broad(h.type) and not any(isinstance(n, ast.Raise) for n in ast.walk(h)) for h in handlers)


def _is_broad(caught: ast.expr | None) -> bool:
    named = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id in BROAD) for kind in named)
