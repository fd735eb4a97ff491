"""Run a tool once, within its time, and make text of whatever comes of it.

Sync tools run while everybody else waits, so that episodes stay deterministic: without a timeout right
here, with one in a thread that is abandoned when time is up, isolated in a forked process that is killed.
Async tools run beside other episodes and are cancelled.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import inspect
import json
import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from multiprocessing.connection import Connection
from typing import Any, Literal

from renshu.errors import ContractError, InfrastructureError, ToolDefinitionError, ToolError

ToolErrorKind = Literal["unknown_tool", "invalid_arguments", "tool_error", "timeout"]
_MACHINE = (ConnectionError, MemoryError)  # no fault of the policy's, whatever it sent

_abandoned: list[threading.Thread] = []


@dataclass(frozen=True)
class ToolResult:
    """A tool's answer as the model reads it. `error_kind` says whose fault it was if not `ok`."""

    text: str
    ok: bool = True
    error_kind: ToolErrorKind | None = None


def abandoned_tools() -> int:
    """How many sync tools that ran out of time are still running in their threads."""
    _abandoned[:] = [thread for thread in _abandoned if thread.is_alive()]
    return len(_abandoned)


async def run(
    name: str,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    *,
    timeout: float | None = None,
    isolate: bool = False,
) -> ToolResult:
    """Call `function(**arguments)`. timeout: seconds. Raises InfrastructureError and ContractError only."""
    if inspect.iscoroutinefunction(function):
        return await _run_async(name, function, arguments, timeout)
    if isolate:
        return _run_process(name, function, arguments, timeout)
    if timeout is not None:
        return _run_thread(name, function, arguments, timeout)
    return _attempt(name, lambda: function(**arguments))


def as_text(name: str, value: Any) -> str:
    """A tool's return value as text: strings as they are, everything else as compact JSON."""
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return _characters(value)
    try:
        return _characters(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractError(f"tool {name} returned a value without a JSON form: {error}") from error


def _characters(text: str) -> str:
    """The text without halves of surrogate pairs, which can be neither tokenized nor written to a file."""
    return text.encode("utf-8", "replace").decode()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} {value!r:.60}")


def _attempt(name: str, call: Callable[[], Any]) -> ToolResult:
    try:
        value = call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # `sys.exit()` or a cancellation inside a tool ends the tool, nothing else
        return _failed(name, error)
    return ToolResult(as_text(name, value))


def _failed(name: str, error: BaseException) -> ToolResult:
    """What the model reads of an error inside a tool; an error of the machine is raised instead."""
    if isinstance(error, InfrastructureError | ContractError):
        raise error
    if isinstance(error, _MACHINE):
        raise InfrastructureError(f"tool {name}: {type(error).__name__}: {error}") from error
    told = str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
    return ToolResult(f"error: {_characters(told)}", ok=False, error_kind="tool_error")


def _late(name: str, timeout: float | None) -> ToolResult:
    return ToolResult(
        f"error: {name} did not answer within {timeout:g} seconds", ok=False, error_kind="timeout"
    )


async def _run_async(
    name: str, function: Callable[..., Any], arguments: dict[str, Any], timeout: float | None
) -> ToolResult:
    task = asyncio.ensure_future(function(**arguments))
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout)
    finally:
        task.cancel()  # does nothing to a finished task
    if not done:
        await asyncio.sleep(0)  # let it see its cancellation
        return _late(name, timeout)
    return _attempt(name, task.result)


def _run_thread(
    name: str, function: Callable[..., Any], arguments: dict[str, Any], timeout: float
) -> ToolResult:
    outcome: list[ToolResult | BaseException] = []

    def work() -> None:
        try:
            outcome.append(_attempt(name, lambda: function(**arguments)))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(
        target=work, name=f"tool {name}", daemon=True
    )  # a daemon does not hold up the exit
    thread.start()
    thread.join(timeout)
    if not outcome:
        _abandoned.append(thread)
        return _late(name, timeout)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _run_process(
    name: str, function: Callable[..., Any], arguments: dict[str, Any], timeout: float | None
) -> ToolResult:
    """In a forked child. The answer comes back as JSON text: the child is not trusted with pickles."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise ToolDefinitionError(f"tool {name}: isolate=True needs a system that can fork processes")
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_child, args=(name, function, arguments, sender), daemon=True)
    child.start()
    sender.close()
    try:
        if not receiver.poll(timeout):
            return _late(name, timeout)
        answer = json.loads(receiver.recv_bytes())
    except EOFError:
        child.join()
        return ToolResult(
            f"error: {name} crashed (exit code {child.exitcode})", ok=False, error_kind="tool_error"
        )
    finally:
        child.kill()
        child.join()
        receiver.close()
    if answer["raised"]:
        raise (ContractError if answer["raised"] == "contract" else InfrastructureError)(answer["text"])
    return ToolResult(answer["text"], answer["ok"], answer["error_kind"])


def _child(name: str, function: Callable[..., Any], arguments: dict[str, Any], sender: Connection) -> None:
    raised = ""
    try:
        result = _attempt(name, lambda: function(**arguments))
    except (ContractError, InfrastructureError) as error:
        raised = "contract" if isinstance(error, ContractError) else "infrastructure"
        result = ToolResult(str(error), ok=False)
    sender.send_bytes(json.dumps({**dataclasses.asdict(result), "raised": raised}).encode())
