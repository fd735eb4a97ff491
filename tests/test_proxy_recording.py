"""Which tokens of an agent's requests are one path, and which open another; worked by hand."""

from __future__ import annotations

import pytest

from renshu.algorithms.grpo import GrpoConfig, credit
from renshu.engines import Generated
from renshu.proxy.recording import Recording
from renshu.serve.paths import Opening
from renshu.types import Group, Message, Scored, Segment, Stop, Task, ToolCall

SAID = Message("assistant", "yes")


def turn(recording, prompt, sampled, said=SAID, finish="stop"):
    logprobs = tuple(-0.1 * token for token in sampled)
    generated = Generated(Segment(tuple(sampled), True, logprobs), finish)
    recording.add(Opening(list(prompt), [Message("user", "hi")]), generated, said)


def ended(recording, score=None):
    return recording.trajectory(Task("t"), Stop.ANSWERED, score or Scored(1.0))


def shown(path):
    return [(segment.sampled, segment.ids) for segment in path]


def test_a_prompt_that_begins_with_the_path_goes_on_with_it():
    recording = Recording()
    assert not recording
    turn(recording, [1, 2], [3, 4], Message("assistant", tool_calls=(ToolCall("f", {}),)))
    turn(recording, [1, 2, 3, 4, 5, 6], [7])
    trajectory = ended(recording)
    assert recording
    assert shown(trajectory.segments) == [
        (False, (1, 2)),
        (True, (3, 4)),
        (False, (5, 6)),
        (True, (7,)),
    ]
    assert trajectory.segments[3].logprobs == (-0.7000000000000001,)
    assert trajectory.forks == ()
    assert trajectory.counts == {"turns": 2, "calls": 1}
    assert [message.role for message in trajectory.messages] == ["user", "assistant"]


def test_a_changed_history_is_a_new_path_and_every_sampled_token_is_trained_once():
    recording = Recording()
    turn(recording, [1, 2], [3, 4])
    turn(recording, [1, 2, 3, 4, 5], [6])
    turn(recording, [1, 9, 3, 4, 5, 6, 7], [8])  # rewritten at its second token
    turn(recording, [1, 2, 3, 4, 5, 6, 7], [9])  # the first path, which went on
    trajectory = ended(recording)
    assert shown(trajectory.forks[0]) == [(False, (1, 9, 3, 4, 5, 6, 7)), (True, (8,))]
    assert [ids for sampled, ids in shown(trajectory.segments) if sampled] == [(3, 4), (6,), (9,)]
    trained = [ids for path in trajectory.paths for sampled, ids in shown(path) if sampled]
    assert sorted(sum(trained, ())) == [3, 4, 6, 8, 9]


def test_two_answers_to_one_prompt_share_it_as_context():
    recording = Recording()
    turn(recording, [1, 2], [3])
    turn(recording, [1, 2, 3, 4], [5])
    turn(recording, [1, 2, 3, 4], [6])  # asked once more: the path is longer by now
    trajectory = ended(recording)
    assert shown(trajectory.segments) == [(False, (1, 2, 3, 4)), (True, (6,))]
    assert [shown(path) for path in trajectory.forks] == [
        [(False, (1, 2)), (True, (3,)), (False, (4,)), (True, (5,))]
    ]


def test_agents_within_the_agent_each_have_their_path():
    recording = Recording()
    turn(recording, [1], [2])
    turn(recording, [7], [8])
    turn(recording, [1, 2, 3], [4])
    turn(recording, [7, 8, 9], [10])
    trajectory = ended(recording)
    assert [ids for _, ids in shown(trajectory.segments)] == [(7,), (8,), (9,), (10,)]
    assert [ids for _, ids in shown(trajectory.forks[0])] == [(1,), (2,), (3,), (4,)]


def test_the_longest_path_is_the_one_that_goes_on():
    recording = Recording()
    turn(recording, [1], [2])
    turn(recording, [1], [2])  # the same answer by chance: a path of its own
    turn(recording, [1, 2, 3], [4])
    turn(recording, [1, 2, 3, 4, 5], [6])
    paths = [[ids for _, ids in shown(path)] for path in ended(recording).paths]
    assert sorted(paths, key=len) == [[(1,), (2,)], [(1,), (2,), (3,), (4,), (5,), (6,)]]


def test_nothing_sampled_is_nothing_recorded():
    recording = Recording()
    turn(recording, [1, 2], [])
    assert not recording
    assert ended(recording).segments == ()


@pytest.mark.parametrize("forked", [False, True])
def test_what_is_recorded_is_what_the_loss_sees(forked):
    better, worse = Recording(), Recording()
    turn(better, [1, 2], [3, 4])
    turn(better, [0 if forked else 1, 2, 3, 4, 5], [6])
    turn(worse, [1, 2], [7])
    group = Group(Task("t"), (ended(better, Scored(1.0)), ended(worse, Scored(0.0))))
    found = credit([group], GrpoConfig(scale="none"))
    trained = [
        [token for token, learned in zip(row.ids, row.trained, strict=True) if learned] for row in found.rows
    ]
    assert trained == ([[3, 4], [6], [7]] if forked else [[3, 4, 6], [7]])
    assert found.advantages == ((0.5, 0.5, -0.5) if forked else (0.5, -0.5))
    assert found.rows[0].logprobs[:2] == (-0.30000000000000004, -0.4)
