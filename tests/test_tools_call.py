"""Calls: answers as text, errors as answers, time kept, the machine's faults kept apart."""

import asyncio
import enum
import json
import os
import threading
import time
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from renshu.errors import ContractError, InfrastructureError, ToolDefinitionError, ToolError
from renshu.tools import ToolResult, ToolSpec, abandoned_tools, tool
from renshu.tools.call import as_text


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Flight:
    number: str
    day: date


def call(function: Any, **arguments: Any) -> ToolResult:
    return asyncio.run(ToolSpec.from_function(function).call(arguments))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("日本 'x'", "日本 'x'"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ([Flight("A8", date(2026, 3, 9))], '[{"number":"A8","day":"2026-03-09"}]'),
        (None, "null"),
        (True, "true"),
        (Colour.RED, '"red"'),
        ("天", "天"),
        ("\ud800", "?"),
        ([], "[]"),
    ],
)
def test_answers_are_text(value: Any, text: str) -> None:
    assert as_text("f", value) == text


def test_an_answer_without_a_text_form_breaks_the_contract() -> None:
    def f() -> object:
        return {1, 2}

    with pytest.raises(ContractError, match=r"tool f returned .* set"):
        call(f)


def raising(error: BaseException) -> Any:
    @tool(isolate=False)
    def f() -> str:
        raise error

    return f


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("no such flight"), "error: no such flight"),
        (KeyError("A8"), "error: KeyError: 'A8'"),
        (SystemExit(1), "error: SystemExit: 1"),
        (TimeoutError("slow"), "error: TimeoutError: slow"),
    ],
)
def test_errors_in_a_tool_are_answers(error: BaseException, text: str) -> None:
    assert call(raising(error)) == ToolResult(text, ok=False, error_kind="tool_error")


@pytest.mark.parametrize("error", [InfrastructureError("db"), ConnectionResetError("db"), MemoryError("db")])
@pytest.mark.parametrize("options", [{}, {"timeout": 5}, {"isolate": True}])
def test_faults_of_the_machine_are_not_the_policys(error: Exception, options: dict[str, Any]) -> None:
    with pytest.raises(InfrastructureError, match="db"):
        call(tool(**options)(raising(error)))


def test_a_bad_call_never_reaches_the_tool() -> None:
    ran = []

    def f(n: int) -> str:
        ran.append(n)
        return "ok"

    assert call(f, n="1").error_kind == "invalid_arguments"
    assert call(f).error_kind == "invalid_arguments"
    assert ran == []
    assert call(f, n=1) == ToolResult("ok")


def test_a_sync_tool_without_limits_runs_right_here() -> None:
    assert call(thread_name).text == threading.current_thread().name


def thread_name() -> str:
    return threading.current_thread().name


def test_a_sync_tool_that_is_late_is_abandoned_and_counted() -> None:
    release = threading.Event()

    @tool(timeout=0.05)
    def slow() -> str:
        release.wait(20)
        return "late"

    before, start = abandoned_tools(), time.perf_counter()
    assert call(slow) == ToolResult("error: slow did not answer within 0.05 seconds", False, "timeout")
    assert time.perf_counter() - start < 5
    assert abandoned_tools() == before + 1
    release.set()
    while abandoned_tools() > before:
        time.sleep(0.01)


def test_a_sync_tool_in_time_answers_as_usual() -> None:
    @tool(timeout=20)
    def quick(n: int) -> int:
        return n + 1

    assert call(quick, n=1) == ToolResult("2")
    assert call(tool(timeout=20)(raising(ToolError("no")))) == ToolResult("error: no", False, "tool_error")


def test_an_async_tool_that_is_late_is_cancelled() -> None:
    seen = []

    @tool(timeout=0.05)
    async def slow() -> str:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "late"

    assert call(slow).error_kind == "timeout"
    assert seen == ["cancelled"]


def test_an_async_tools_own_timeout_is_its_own_error() -> None:
    @tool(timeout=20)
    async def f() -> str:
        raise TimeoutError("upstream")

    assert call(f) == ToolResult("error: TimeoutError: upstream", False, "tool_error")


def test_async_tools_run_beside_each_other() -> None:
    arrived = []

    async def meet(me: int) -> int:
        arrived.append(me)
        while len(arrived) < 2:
            await asyncio.sleep(0)
        return me

    async def both() -> list[ToolResult]:
        spec = ToolSpec.from_function(meet)
        return list(await asyncio.wait_for(asyncio.gather(spec.call({"me": 1}), spec.call({"me": 2})), 20))

    assert [result.text for result in asyncio.run(both())] == ["1", "2"]


def test_an_isolated_tool_has_a_process_of_its_own() -> None:
    state: list[int] = []

    @tool(isolate=True)
    def f(n: int) -> dict[str, int]:
        state.append(n)
        return {"pid": os.getpid(), "n": n}

    answer = json.loads(call(f, n=3).text)
    assert answer["n"] == 3
    assert answer["pid"] != os.getpid()
    assert state == []


def test_an_isolated_tool_is_killed_and_may_crash() -> None:
    @tool(isolate=True, timeout=0.3)
    def endless() -> str:
        while True:
            pass

    @tool(isolate=True)
    def crash() -> str:
        os._exit(7)

    start = time.perf_counter()
    assert call(endless).error_kind == "timeout"
    assert time.perf_counter() - start < 10
    assert call(crash) == ToolResult("error: crash crashed (exit code 7)", False, "tool_error")
    assert call(tool(isolate=True)(raising(ToolError("no")))) == ToolResult("error: no", False, "tool_error")


def test_isolation_needs_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(ToolDefinitionError, match="fork"):
        call(tool(isolate=True)(raising(ToolError("no"))))


class Quit(BaseException):
    """Not an Exception, like what `sys.exit` and a cancellation raise."""


@pytest.mark.parametrize("error", [Quit("x"), SystemExit(3), GeneratorExit(), asyncio.CancelledError()])
@pytest.mark.parametrize("options", [{}, {"timeout": 5.0}, {"timeout": 5.0, "isolate": True}])
def test_whatever_a_tool_raises_ends_the_tool_only(error: BaseException, options: Any) -> None:
    result = call(tool(**options)(raising(error)))
    assert result == ToolResult(f"error: {type(error).__name__}: {error}", False, "tool_error")


def test_what_an_async_tool_raises_ends_the_tool_only() -> None:
    async def cancelled() -> str:
        raise asyncio.CancelledError

    assert call(cancelled) == ToolResult("error: CancelledError: ", False, "tool_error")


@pytest.mark.parametrize("options", [{}, {"timeout": 5.0}])
def test_a_keyboard_interrupt_is_never_swallowed(options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        call(tool(**options)(raising(KeyboardInterrupt())))


def test_texts_of_errors_are_whole_characters() -> None:
    assert call(raising(ValueError("\ud800"))).text == "error: ValueError: ?"


def test_a_value_that_nests_too_deeply_breaks_the_contract() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ContractError, match="without a JSON form"):
        as_text("t", deep)
