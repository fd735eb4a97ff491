"""Episodes with a model behind an endpoint are scored as those of any engine."""

from __future__ import annotations

import asyncio
import json

import pytest

from api_kit import listening, said, wire
from renshu.engines.openai_chat import ChatModel, Usage
from renshu.engines.openai_client import Endpoint, Patience
from renshu.envs import Environment, Tasks, success
from renshu.errors import InfrastructureError
from renshu.rollout.dialogue import run_dialogue
from renshu.types import Scored, Stop, Task, Unscored
from rollout_kit import Shelf

TASK = Task("shelf/train/0", {"box": "red"})
QUICK = Patience(seconds=2.0, connecting=0.2, pause=0.01)


def play(answer, environment=Shelf, **options):
    """One episode: what came of it, and the server."""
    if isinstance(answer, list):
        left = list(answer)
        answer = lambda path, body: left.pop(0)  # noqa: E731
    with listening(answer) as server:
        model = ChatModel("m", Endpoint(server.url, patience=QUICK))

        async def go():
            async with model.endpoint.open():
                return await run_dialogue(environment(), TASK, model, **({"max_tokens": 100} | options))

        return asyncio.run(go()), server


def test_a_solved_episode_and_what_the_server_was_told():
    spoken, server = play([said(None, wire("fetch", '{"box": "red"}')), said("There.", usage=(20, 4, 9))])
    trajectory = spoken.trajectory
    assert (trajectory.stop, trajectory.score.success) == (Stop.ANSWERED, True)
    assert [m.role for m in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert trajectory.counts == {"turns": 2, "calls": 1, "bad_calls": 0, "tool_errors": 0, "timeouts": 0}
    assert spoken.usage == Usage(30, 9, None)  # the first turn did not tell of its cache
    assert (trajectory.segments, trajectory.sampled_tokens) == ((), 0)
    first, second = server.bodies
    assert [tool["function"]["name"] for tool in first["tools"]] == ["fetch", "read", "nap", "crash"]
    assert second["messages"] == [
        {"role": "system", "content": "Fetch."},
        {"role": "user", "content": "Fetch the red box."},
        {"role": "assistant", "content": None, "tool_calls": [wire("fetch", '{"box": "red"}')]},
        {"role": "tool", "tool_call_id": "call_a", "content": "here is red"},
    ]
    assert (first["max_tokens"], second["max_tokens"]) == (100, 95)  # one budget for all turns


def test_bad_calls_are_counted_and_answered_each():
    calls = [wire("fetch", '{"box": '), wire("lift", "{}"), wire("fetch", '{"box": "red"}', None)]
    spoken, server = play([said("so", *calls), said("done")])
    assert spoken.trajectory.score.success is True
    assert spoken.trajectory.counts["bad_calls"] == 2
    assistant, *answers = server.bodies[1]["messages"][2:]
    assert [call["id"] for call in assistant["tool_calls"]] == [a["tool_call_id"] for a in answers]
    texts = [answer["content"] for answer in answers]
    assert texts[0].startswith("error: truncated_arguments")
    assert texts[1].startswith("error: no tool 'lift'")
    assert texts[2] == "here is red"


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_a_cut_reply_runs_no_call_and_is_scored(finish):
    spoken, _ = play([said(None, wire("fetch", '{"box": "red"}'), finish=finish)])
    assert spoken.trajectory.stop == Stop.LENGTH
    assert spoken.trajectory.score == Scored(0.0, {"right": 0.0}, False)
    assert spoken.trajectory.counts["calls"] == 0


def test_a_used_up_budget_ends_the_episode():
    spoken, server = play([said(None, wire("fetch", '{"box": "red"}'), usage=(10, 100))])
    assert spoken.trajectory.stop == Stop.LENGTH
    assert spoken.trajectory.score.success is True  # as it stands
    assert len(server.asked) == 1


def test_without_usage_tokens_are_unknown_and_every_turn_has_the_budget():
    spoken, server = play([said(None, wire("fetch", '{"box": "red"}'), usage=None), said("x")])
    assert spoken.usage is None
    assert [body["max_tokens"] for body in server.bodies] == [100, 100]


def test_a_server_that_fails_leaves_the_episode_unscored_and_tells_what_was_paid():
    answers = iter([said(None, wire("fetch", '{"box": "red"}'))])
    spoken, _ = play(lambda path, body: next(answers, (503, "down")))
    assert spoken.trajectory.stop == Stop.ERROR
    assert isinstance(spoken.trajectory.score, Unscored)
    assert spoken.trajectory.score.reason.startswith("infrastructure: http://127.0.0.1")
    assert spoken.usage == Usage(10, 5, None)
    assert len(spoken.trajectory.messages) == 4


def test_a_dialogue_too_long_for_the_server_is_unscored():
    answers = iter([said(None, wire("read", '{"pages": 9}'))])
    long = 400, {"error": {"code": "context_length_exceeded", "message": "too long"}}
    spoken, _ = play(lambda path, body: next(answers, long))
    assert spoken.trajectory.stop == Stop.LENGTH
    assert spoken.trajectory.score.reason.startswith("context_overflow: ")


def test_a_failing_setup_asks_nothing():
    class Broken(Environment):
        tasks = Tasks(train=[TASK])

        def setup(self, task):
            raise InfrastructureError("no disk")

        @success
        def solved(self, trajectory):
            return True

    spoken, server = play([], Broken)
    assert spoken.trajectory.score == Unscored("infrastructure: no disk")
    assert server.asked == []


def test_user_turns_follow_answers():
    class Asks(Shelf):
        def user(self, reply):
            return "are you sure?" if reply.content == "done" else None

    spoken, server = play([said("done"), said("yes")], Asks)
    assert spoken.trajectory.stop == Stop.ANSWERED
    assert json.dumps(server.bodies[1]["messages"][2:]) == json.dumps(
        [{"role": "assistant", "content": "done"}, {"role": "user", "content": "are you sure?"}]
    )
