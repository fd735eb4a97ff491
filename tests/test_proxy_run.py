"""Whole runs through the proxy with a tiny model: what they learn, write, keep, and survive."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from proxy_kit import letters, low, proxied, proxy_recipe, say
from renshu.errors import ConfigError
from renshu.evaluation.statistics import mcnemar
from renshu.pipeline.finished import find_target
from renshu.pipeline.loaded_agent import load_agent
from renshu.pipeline.prepare import prepare
from renshu.pipeline.recipe import dump_recipe
from renshu.proxy.client import Episode, Proxy, ProxyError, Reward
from renshu.proxy.start import require_elsewhere
from renshu.train.checkpoint import latest

TASKS = [f"t{number}" for number in range(6)]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def sure(episode: Episode, *, solved: bool) -> Reward:
    return Reward(low(say(episode)), solved)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of four steps with looks at dev, and what its agents' program saw."""
    folder = tmp_path_factory.mktemp("proxy")
    seen: dict = {"steps": [], "practice": []}
    with proxied(proxy_recipe(folder, grpo={"steps": 4, "learning_rate": 0.05})) as proxy:
        seen["before"] = proxy.run(TASKS, letters, split="test")
        for step in proxy.steps():
            seen["steps"].append(step)
            seen["practice"].append(proxy.run(["a", "b"], letters))
            if step in (1, 3):
                proxy.run(["d1", "d2"], partial(sure, solved=step == 1), split="dev")
        seen["status"] = proxy.status()
        seen["after"] = proxy.run(TASKS, letters, split="test")
        seen["final"] = proxy.status()
        seen["end"] = proxy.finish()
    return folder / "run", seen


def test_it_learns_and_measures_before_and_after(finished):
    _, seen = finished
    assert seen["steps"] == [0, 1, 2, 3]
    first, last = (sum(one.reward.value for one in seen["practice"][step]) / 8 for step in (0, 3))
    assert last > first + 0.1
    (benchmark,) = seen["end"]["summary"]["evaluation"].values()
    base, final = benchmark["arms"]
    assert (base["arm"], final["arm"]) == ("base", "final")
    outcomes = [[one.reward.success for one in seen[when]] for when in ("before", "after")]
    assert final["p_vs_base"] == pytest.approx(mcnemar(*outcomes).p)
    assert base["reward"] == pytest.approx(sum(one.reward.value for one in seen["before"]) / 6)


def test_the_best_on_dev_is_kept_not_the_last(finished):
    run, seen = finished
    assert seen["status"]["phase"] == "practised"
    assert seen["final"]["phase"] == "final"
    rows = lines(run / "metrics.jsonl")
    assert [row.get("dev_success") for row in rows] == [None, 1.0, None, 0.0]
    assert {row["step"] for row in lines(run / "evaluation/final.jsonl")} == {2}
    assert not list((run / "checkpoints").glob("checkpoint-*"))


def test_tokens_are_on_disk_as_the_loss_saw_them(finished):
    run, _ = finished
    for step in range(1, 5):
        episodes = lines(run / f"trajectories/practice/step-{step:05}.jsonl")
        assert len(episodes) == 8
        assert [episode["task"] for episode in episodes] == ["a"] * 4 + ["b"] * 4
        for episode in episodes:
            ((prompt, said),) = episode["paths"]
            assert (prompt["sampled"], said["sampled"]) == (False, True)
            assert len(said["logprobs"]) == len(said["ids"]) == episode["tokens"]["sampled"]
    for row in lines(run / "metrics.jsonl"):
        assert row["sampler_gap_max"] < 1e-4  # sampler and trainer see the same tokens, weights, temperature


def test_what_was_kept_is_used_like_that_of_any_run(finished, call):
    run, seen = finished
    assert (run / "report.html").is_file()
    agent = load_agent(run)
    assert (
        low(agent.reply([{"role": "user", "content": "go"}], max_tokens=4).content)
        == seen["after"][0].reward.value
    )
    assert find_target(str(run)).recipe.env is None
    code, _, error = call("eval", run)
    assert (code, "name an environment with --env" in error) == (1, True)
    code, _, error = call("resume", run)
    assert (code, "is complete" in error) == (1, True)
    code, _, error = call("pack", run)
    assert (code, "trained through the proxy" in error) == (1, True)
    code, shown, _ = call("runs", run.parent)
    assert (code, "complete" in shown) == (0, True)


def test_a_complete_run_is_not_begun_again(finished):
    run, _ = finished
    with (
        pytest.raises(ConfigError, match="holds a run: pass --overwrite"),
        proxied(proxy_recipe(run.parent, grpo={"steps": 4, "learning_rate": 0.05})),
    ):
        pass


def test_agents_that_fail_leave_their_episodes_unknown(tmp_path):
    def moody(episode):
        if episode.task == "bad":
            raise RuntimeError("the tool is broken")
        return low(say(episode))

    with proxied(proxy_recipe(tmp_path, grpo={"steps": 2})) as proxy:
        steps = proxy.steps()
        next(steps)
        with pytest.raises(ProxyError, match="nothing to learn from"):
            next(steps)
        played = proxy.run(["bad", "good"], moody)
        assert [str(one.error) for one in played] == ["the tool is broken"] * 4 + ["None"] * 4
        with pytest.raises(ProxyError, match="every agent failed, the first with RuntimeError"):
            proxy.run(["bad"], moody)
        assert proxy.status(after=0)["updates"] == 1
        first = proxy.begin("one")
        assert proxy.reward(first, True) == Reward(1.0, True)
        end = proxy.finish()
    (row,) = lines(tmp_path / "run/metrics.jsonl")
    assert (row["unscored"], row["unscored/no_reward"]) == (4, 4)
    assert (row["groups/trained"] + row.get("groups/equal_rewards", 0), row["groups/no_reward"]) == (1, 1)
    assert end["summary"]["stages"][0]["steps"] == 1  # the end was asked for before the last step


STARTED: list[subprocess.Popen] = []


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()  # of no effect on one that has ended
        process.communicate()


def started(folder: Path, every: int) -> tuple[subprocess.Popen, Proxy]:
    """A proxy in a process of its own."""
    kit = Path(__file__).with_name("proxy_kit.py")
    command = [sys.executable, str(kit), str(folder), str(every)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    STARTED.append(process)
    address = next(line for line in process.stdout if "/episodes" in line).split()[-1]
    return process, Proxy(address.removesuffix("/episodes"))


def test_killed_and_interrupted_it_goes_on_from_its_last_step(tmp_path):
    process, proxy = started(tmp_path, 1)
    proxy.run(TASKS[:2], letters, split="test")
    steps = proxy.steps()
    next(steps)
    proxy.run(["a", "b"], letters)
    assert next(steps) == 1
    lost = proxy.begin("a")
    proxy.run(["a"], letters, group=1)
    process.kill()
    process.wait()
    with pytest.raises(ProxyError, match="does not answer"):
        proxy.status()
    assert latest(tmp_path / "run/checkpoints").path.name == "checkpoint-1"

    process, proxy = started(tmp_path, 1)
    status = proxy.status(after=-1)  # once the stage has begun
    assert (status["stage"]["step"], status["updates"]) == (1, 1)
    assert status["episodes"] == {"open": 0, "waiting": 0}  # what no step had learned from is lost
    with pytest.raises(ProxyError, match="those that were open when the proxy was started again are lost"):
        proxy.reward(lost, 1.0)
    proxy.run(["a", "b"], letters)
    assert proxy.status(after=1)["updates"] == 2
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    assert latest(tmp_path / "run/checkpoints").path.name == "checkpoint-2"

    recipe = proxy_recipe(tmp_path, grpo={"steps": 4}, checkpoints={"every": 1}, threads=1)
    with proxied(recipe) as proxy:
        assert [step for step in proxy.steps() if proxy.run(["a", "b"], letters)] == [2, 3]
        end = proxy.finish()
    assert [row["step"] for row in lines(tmp_path / "run/metrics.jsonl")] == [1, 2, 3, 4]
    arms = {arm["arm"]: arm["n"] for found in end["summary"]["evaluation"].values() for arm in found["arms"]}
    assert arms == {"base": 2, "final": 0}  # base was measured before the kill


def test_ctrl_c_saves_steps_that_no_checkpoint_has(tmp_path):
    process, proxy = started(tmp_path, 10)
    proxy.run(["a", "b"], letters)
    assert proxy.status(after=0)["updates"] == 1
    assert latest(tmp_path / "run/checkpoints").path.name == "checkpoint-0"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert latest(tmp_path / "run/checkpoints").path.name == "checkpoint-1"
    assert "kept: the run at step 1 of practice; go on with: the same command" in told


def test_two_stages_and_the_weights_between(tmp_path):
    stages = [
        {
            "name": name,
            "grpo": {"steps": 1, "tasks_per_step": 1, "group": 2, "learning_rate": 0.02, "beta": beta},
            "sample": {"max_tokens": 4},
        }
        for name, beta in (("one", 0.0), ("two", 0.1))
    ]
    with proxied(proxy_recipe(tmp_path, stages=stages)) as proxy:
        assert [
            step
            for step in proxy.steps()
            if proxy.run(["a"], letters) and proxy.run(["t"], letters, split="test")
        ] == [0, 1]
        end = proxy.finish()
    assert [stage["name"] for stage in end["summary"]["stages"]] == ["one", "two"]
    arms = [arm["arm"] for found in end["summary"]["evaluation"].values() for arm in found["arms"]]
    assert arms == ["one", "final"]


def test_any_algorithm_that_samples_trains_through_the_proxy(tmp_path):
    ppo = {"steps": 2, "tasks_per_step": 2, "group": 1, "learning_rate": 0.01}
    stages = [{"name": "practice", "ppo": ppo, "sample": {"max_tokens": 4}}]
    with proxied(proxy_recipe(tmp_path, stages=stages)) as proxy:
        assert [step for step in proxy.steps() if proxy.run(["a", "b"], letters)] == [0, 1]
    for row in lines(tmp_path / "run/metrics.jsonl"):
        assert row["rollouts"] == 2
        assert row["sampler_gap_max"] < 1e-4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"env": "flights"}, "leave env out"),
        ({"stages": [{"name": "s", "sft": {}}]}, "learns from data, not from agents"),
        ({"eval": {"tasks": 5}}, "eval.tasks: the agents' program says what is measured"),
        ({"checks": {"must_pass": "cases.jsonl"}}, "no environment to play cases in"),
    ],
)
def test_what_a_proxy_cannot_do_is_refused(tmp_path, changes, told):
    with pytest.raises(ConfigError, match=told):
        require_elsewhere(proxy_recipe(tmp_path, **changes))


def test_a_recipe_without_env_is_for_the_proxy_only(tmp_path):
    recipe = proxy_recipe(tmp_path)
    with pytest.raises(ConfigError, match="env is missing: name an environment .* `renshu proxy`"):
        prepare(recipe, name="tiny")
    assert "\nenv:" not in dump_recipe(recipe)


def test_settings_must_be_those_of_the_run_that_goes_on(tmp_path):
    process, proxy = started(tmp_path, 1)
    proxy.run(["a", "b"], letters)
    assert proxy.status(after=0)["updates"] == 1
    process.kill()
    process.wait()
    with pytest.raises(ConfigError, match="holds a run of other settings"), proxied(proxy_recipe(tmp_path)):
        pass
