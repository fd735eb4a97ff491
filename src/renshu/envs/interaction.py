"""One environment in dialogue with one policy, in messages only: rollouts add tokens, gold solutions need
none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

from renshu.chat import ParseError, Reply
from renshu.envs.environment import Environment
from renshu.envs.moves import Call, Move, Moves, Think
from renshu.errors import ContractError, InfrastructureError
from renshu.tools import ToolResult
from renshu.types import Message, Segment, Stop, Task, ToolCall, Trajectory, Unscored

T = TypeVar("T")
COUNTS = ("turns", "calls", "bad_calls", "tool_errors", "timeouts")
BAD_CALLS = frozenset({"unknown_tool", "invalid_arguments"})


class Interaction:
    """The messages of an episode, who may be called, and what went wrong.

    counts: `turns` of the model; `calls` it attempted; of these `bad_calls` (could not be read, no such tool,
        wrong arguments), `tool_errors` (the tool refused or failed) and `timeouts`. Raises ContractError if
        the environment breaks its contract, InfrastructureError if its code fails.
    """

    def __init__(self, environment: Environment, task: Task, max_turns: int | None = None) -> None:
        self.environment, self.task = environment, task
        self.max_turns = environment.max_turns if max_turns is None else max_turns
        with boundary(f"{type(environment).__name__}.setup, task {task.id}"):
            self.messages = list(environment.opening(task))
        self.tools = {spec.name: spec for spec in environment.tools()}
        self.counts = Counter(dict.fromkeys(COUNTS, 0))

    @property
    def schemas(self) -> list[dict[str, object]]:
        """The tools as the chat template shows them."""
        return [spec.schema for spec in self.tools.values()]

    async def answer(self, reply: Reply) -> tuple[Message, ...] | Stop:
        """Carry out a reply of the model: the messages it reads next, or why the episode ends.

        Every call and every call that could not be read gets one tool message, in order.
        """
        self.messages.append(reply.message)
        self.counts["turns"] += 1
        answers = [await self._attempt(attempt) for attempt in reply.attempts]
        if not reply.attempts:
            with boundary(f"{type(self.environment).__name__}.user"):
                request = self.environment.user(reply.message)
            if request is None:
                return Stop.ANSWERED
            answers = [Message("user", request)]
        self.messages.extend(answers)
        with boundary(f"{type(self.environment).__name__}.is_done"):
            if self.environment.is_done():
                return Stop.ENV_DONE
        return Stop.TURNS if self.counts["turns"] >= self.max_turns else tuple(answers)

    def cut(self, reply: Reply) -> None:
        """Write down a reply that came too late or was torn off: it counts as a turn, none of its calls is
        run.
        """
        self.messages.append(replace(reply.message, tool_calls=()))
        self.counts["turns"] += 1

    async def _attempt(self, attempt: ToolCall | ParseError) -> Message:
        self.counts["calls"] += 1
        if isinstance(attempt, ParseError):
            self.counts["bad_calls"] += 1
            return Message("tool", f"error: {attempt}")
        result = await self._run(attempt)
        if not result.ok:
            kind = result.error_kind
            self.counts[
                "timeouts" if kind == "timeout" else "bad_calls" if kind in BAD_CALLS else "tool_errors"
            ] += 1
        return Message("tool", result.text, tool_call_id=attempt.id or None, name=attempt.name)

    async def _run(self, call: ToolCall) -> ToolResult:
        if call.name not in self.tools:
            known = ", ".join(self.tools) or "none"
            return ToolResult(
                f"error: no tool {call.name!r}; there are: {known}", ok=False, error_kind="unknown_tool"
            )
        return await self.tools[call.name].call(call.arguments)

    def finish(
        self, stop: Stop, segments: Sequence[Segment] = (), forks: Sequence[Sequence[Segment]] = ()
    ) -> Trajectory:
        """The episode as it stands, scored by the environment's rubric."""
        unscored = self.abandon(stop, "not scored yet", segments, forks)
        return unscored.with_score(self.environment.rubric().score(unscored))

    def abandon(
        self,
        stop: Stop,
        reason: str,
        segments: Sequence[Segment] = (),
        forks: Sequence[Sequence[Segment]] = (),
    ) -> Trajectory:
        """The episode as it stands, its score unknown."""
        return Trajectory(
            task=self.task,
            segments=tuple(segments),
            messages=tuple(self.messages),
            stop=stop,
            score=Unscored(reason),
            forks=tuple(tuple(fork) for fork in forks),
            counts=dict(self.counts),
        )


@contextmanager
def boundary(where: str) -> Iterator[None]:
    """An error of the environment's own code is no fault of the policy: it surfaces as
    InfrastructureError.
    """
    try:
        yield
    except (ContractError, InfrastructureError, KeyboardInterrupt):
        raise
    except BaseException as error:  # `sys.exit()` inside an environment must not end the run
        raise InfrastructureError(f"{where}: {type(error).__name__}: {error}") from error


async def play(
    environment: Environment, task: Task, moves: Moves | Iterable[Move] | None = None
) -> Trajectory:
    """Play scripted moves, or else `environment.solve()`, to the end of the episode.

    The trajectory has messages and a score but no tokens. Raises ContractError if the moves run out before
    the episode has ended.
    """
    interaction = Interaction(environment, task)
    script = _script(environment.solve() if moves is None else moves)
    answer, thought = None, None
    while True:
        with boundary(f"the moves of {type(environment).__name__}, task {task.id}"):
            move = _next_move(script, answer)
        if move is None:
            raise ContractError(
                f"task {task.id}: the moves of {type(environment).__name__} end before the episode does; "
                "end them with say(...)"
            )
        if isinstance(move, Think):
            answer, thought = "", move.text
            continue
        if isinstance(move, Call):
            reply = Reply("", thought, (ToolCall(move.name, move.arguments),))
        else:
            reply = Reply(move.text, thought)
        outcome = await interaction.answer(reply)
        if isinstance(outcome, Stop):
            script.close()
            return interaction.finish(outcome)
        answer, thought = outcome[-1].content, None


def _script(moves: Moves | Iterable[Move]) -> Moves:
    """The moves as a generator, which may be told the answers."""
    return moves if isinstance(moves, Generator) else cast(Moves, (move for move in moves))


def _next_move(script: Moves, answer: str | None) -> Move | None:
    try:
        return next(script) if answer is None else script.send(answer)
    except StopIteration:
        return None


def play_through(
    environment: Environment, task: Task, moves: Moves | Iterable[Move] | None = None
) -> Trajectory:
    """`play` for callers that are no coroutines."""
    return in_own_loop(play(environment, task, moves))


def in_own_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, also for callers that an event loop is already running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
