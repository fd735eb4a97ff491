"""Groups: prompts read once, seeds by identity, and metrics that hide nothing."""

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM

from renshu.engines.native import NativeEngine
from renshu.envs.flights import FlightDesk
from renshu.errors import ConfigError
from renshu.rewards import cause_of
from renshu.rollout import collect, length_metrics, rollout_metrics, tool_sequences, why_untrained
from renshu.seeding import stable_hash
from renshu.types import Group, Message, Scored, Segment, Stop, ToolCall, Trajectory, Unscored, row_of
from rollout_kit import CHAT, Shelf, call_text, engine, sampling
from tiny_models import qwen_template, save_tiny_model

FETCH = call_text("fetch", '{"box": "red"}')
TASKS = Shelf.tasks.train


def gather(source, tasks, group=2, make_env=Shelf, **settings):
    return collect(source, CHAT, make_env, tasks, group=group, sampling=sampling(), **{"seed": 5, **settings})


def fetch_then_answer(text):
    return "Here." if "here is red" in text else FETCH


class Spy:
    """Notes the seeds of opened and forked sessions."""

    def __init__(self, inner):
        self.inner, self.seeds, self.opened = inner, [], 0

    def open(self, ids, *, seed):
        self.opened += 1
        session = self.inner.open(ids, seed=seed)
        fork = session.fork
        session.fork = lambda seeds: self.seeds.extend(seeds) or fork(seeds)
        return session

    def run(self, episodes):
        return self.inner.run(episodes)


def test_groups_come_back_in_the_order_of_tasks():
    groups = gather(engine(fetch_then_answer), TASKS[:3], group=4)
    assert [group.task.id for group in groups] == [task.id for task in TASKS[:3]]
    assert [len(group.trajectories) for group in groups] == [4, 4, 4]
    assert all(t.task == group.task and t.score.value == 1.0 for group in groups for t in group.trajectories)


def test_seeds_name_seed_step_task_and_slot():
    spy = Spy(engine(fetch_then_answer))
    gather(spy, [TASKS[0], TASKS[1], TASKS[0]], seed=5, step=3)
    expected = [("shelf/train/0", 0), ("shelf/train/0", 1), ("shelf/train/1", 0), ("shelf/train/1", 1)]
    expected += [("shelf/train/0", 2), ("shelf/train/0", 3)]  # a task given twice goes on counting
    assert spy.seeds == [stable_hash(5, 3, task, slot) for task, slot in expected]
    assert spy.opened == 3  # one prompt a group
    assert len(set(spy.seeds)) == 6


def test_what_cannot_begin_is_unscored_and_the_rest_goes_on():
    class Sick(Shelf):
        def setup(self, task):
            if task.id == "shelf/train/0":
                raise OSError("no disk")
            return super().setup(task) + (" please" * 2000 if task.id == "shelf/train/1" else "")

    sick, long, well = gather(engine(fetch_then_answer, context=4096), TASKS[:3], make_env=Sick)
    ends = [(t.stop, cause_of(t.score)) for group in (sick, long) for t in group.trajectories]
    assert ends == [(Stop.ERROR, "infrastructure")] * 2 + [(Stop.LENGTH, "context_overflow")] * 2
    assert "task shelf/train/1" in long.trajectories[0].score.reason
    assert [t.score.value for t in well.trajectories] == [1.0, 1.0]


def test_an_empty_group_is_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        gather(engine(fetch_then_answer), TASKS[:1], group=0)


def test_async_tools_run_beside_each_other():
    from renshu.tools import tool

    class Slow(Shelf):
        together = most = 0

        @tool
        async def fetch(self, box: str) -> str:
            """Fetch a box."""
            Slow.together += 1
            Slow.most = max(Slow.most, Slow.together)
            await asyncio.sleep(0.02)
            Slow.together -= 1
            self.fetched.append(box)
            return f"here is {box}"

    (group,) = gather(engine(fetch_then_answer), TASKS[:1], group=5, make_env=Slow)
    assert [t.score.value for t in group.trajectories] == [1.0] * 5
    assert Slow.most == 5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = save_tiny_model(tmp_path_factory.mktemp("tiny"), template=qwen_template())
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)


def play(model, tasks, seed=0):
    source = NativeEngine(model)
    groups = collect(source, CHAT, FlightDesk, tasks, group=3, sampling=sampling(24), seed=seed, step=1)
    return groups, source.stats


def test_a_trajectory_depends_on_its_identity_not_on_its_batch(model):
    tasks = FlightDesk.tasks.train[:3]
    together, stats = play(model, tasks)
    alone, _ = play(model, tasks[2:])
    backwards, _ = play(model, tasks[::-1])
    assert written(together[2]) == written(alone[0])
    assert [written(group) for group in together] == [written(group) for group in backwards[::-1]]
    other, _ = play(model, tasks, seed=1)
    texts = [[text for group in groups for text in written(group)] for groups in (together, other)]
    assert len(set(texts[0])) == 9
    assert not set(texts[0]) & set(texts[1])
    assert stats.naive > 5 * stats.computed


def written(group):
    return [row_of(trajectory.segments).ids for trajectory in group.trajectories]


def rollout(value, *, sampled=3, logprobs=True, stop=Stop.ANSWERED, task=TASKS[0], calls=(), first=0):
    score = value if isinstance(value, Unscored) else Scored(value, {"right": value}, success=value == 1.0)
    ids = tuple(range(first, first + sampled))
    segments = (Segment((1, 2)), Segment(ids, True, (0.0,) * sampled if logprobs else None))
    messages = tuple(Message("assistant", tool_calls=(ToolCall(name, {}),)) for name in calls)
    return Trajectory(
        task, segments, messages, stop, score, counts={"turns": 1 + len(calls), "calls": len(calls)}
    )


def group_of(*trajectories):
    return Group(TASKS[0], trajectories)


JUDGE = Unscored("judge_failed: part 'kind': TimeoutError")


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (group_of(rollout(1.0), rollout(0.0)), None),
        (group_of(rollout(1.0, logprobs=False), rollout(1.0, logprobs=False)), "missing_logprobs"),
        (group_of(rollout(1.0), rollout(1.0), rollout(JUDGE)), "equal_rewards"),
        (group_of(rollout(0.9), rollout(0.9 + 1e-9)), "equal_rewards"),
        (group_of(rollout(JUDGE), rollout(JUDGE)), "judge_failed"),
        (group_of(rollout(1.0), rollout(JUDGE)), "judge_failed"),
        (group_of(rollout(1.0)), "single_rollout"),
    ],
)
def test_e27_the_true_cause_is_reported(group, reason):
    assert why_untrained(group) == reason
    alone = None if any(isinstance(t.score, Scored) for t in group.trajectories) else reason
    assert why_untrained(group, compared=False) == alone  # PPO, KTO


def test_metrics_by_hand():
    groups = [
        group_of(
            rollout(1.0, calls=["calendar", "book"]),
            rollout(0.0, sampled=5, stop=Stop.LENGTH),
            rollout(JUDGE, first=9),
            rollout(0.0, sampled=5, stop=Stop.LENGTH),
        ),
        group_of(rollout(1.0), rollout(1.0, first=4)),
    ]
    metrics = rollout_metrics(groups)
    expected = {
        "rollouts": 6,
        "unscored": 1,
        "unscored/judge_failed": 1,
        "groups": 2,
        "groups/trained": 1,
        "groups/equal_rewards": 1,
        "groups/spread": 0.5,
        "duplicates": 1 / 6,
        "reward": 0.6,
        "reward/right": 0.6,
        "success": 0.6,
        "reward/std": 0.24**0.5,
        "stop/answered": 4 / 6,
        "stop/length": 2 / 6,
        "turns/mean": 8 / 6,
        "calls/mean": 2 / 6,
        "tokens/mean": 22 / 6,
        "tokens/min": 3,
        "tokens/max": 5,
        "tokens/clipped": 2 / 6,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert {name: value for name, value in metrics.items() if name not in expected} == {
        f"stop/{stop}": 0.0 for stop in ("env_done", "turns", "timeout", "error")
    }
    assert tool_sequences(t for group in groups for t in group.trajectories) == {"calendar > book": 1, "": 5}


def test_a_mean_over_nothing_is_left_out():
    metrics = rollout_metrics([group_of(rollout(JUDGE), rollout(JUDGE))])
    assert "reward" not in metrics
    assert "success" not in metrics
    assert rollout_metrics([]) == {}


def test_e13_lengths_are_taken_before_anything_is_masked():
    cut = [
        rollout(0.0, sampled=n, stop=s)
        for n, s in ((12, Stop.ANSWERED), (40, Stop.ANSWERED), (512, Stop.LENGTH))
    ]
    metrics = length_metrics(cut)
    assert metrics["tokens/min"] == 12
    assert metrics["tokens/max"] == 512
    assert metrics["tokens/clipped"] == pytest.approx(0.3333, abs=1e-4)
    assert metrics["tokens/mean"] == 188.0
