"""The proxy's endpoints on a scripted engine: what agents get, what is recorded, what is refused."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from proxy_house import HELLO, House, error
from renshu.proxy.register import Over
from renshu.rollout import Limits
from renshu.types import Scored, Stop, Unscored
from rollout_kit import call_text, text_of, trained_text
from serve_kit import CALLED, WEATHER, Steps, events


def test_turns_with_tools_are_one_path_with_the_very_tokens():
    replies = iter([call_text("weather", '{"city": "Oslo"}'), "It rains."])
    said = {}
    house = House(
        Steps(lambda prompt: said.setdefault(prompt, next(replies)) if prompt not in said else said[prompt])
    )

    async def work(client):
        episode = await client.begin()
        first = (await client.ask(episode, tools=[WEATHER])).json()["choices"][0]
        (call,) = first["message"]["tool_calls"]
        assert call["function"] == CALLED
        assert first["finish_reason"] == "tool_calls"
        told = [first["message"], {"role": "tool", "tool_call_id": call["id"], "content": "rain"}]
        second = await client.ask(episode, messages=[*HELLO["messages"], *told], tools=[WEATHER])
        assert second.json()["choices"][0]["message"]["content"] == "It rains."
        assert second.json()["model"] == "tiny"  # whatever the client called it
        answer = await client.reward(episode, 0.5, success=True)
        assert answer.json() == {"id": episode, "scored": True, "reason": None}
        await client.post("/train")
        return await house.gathered()

    (group,) = house.play(work)
    (trajectory,) = group.trajectories
    assert group.task.id == "t"
    assert trajectory.score == Scored(0.5, success=True)
    assert trained_text(trajectory) == [
        f"{call_text('weather', json.dumps({'city': 'Oslo'}))}<|im_end|>",
        "It rains.<|im_end|>",
    ]
    assert [segment.sampled for segment in trajectory.segments] == [False, True, False, True]
    assert text_of(trajectory.segments[2].ids).startswith("\n<|im_start|>user\n<tool_response>\nrain")
    assert trajectory.forks == ()
    assert trajectory.segments[1].logprobs[:2] == (-0.5, -0.5)
    assert trajectory.counts == {"turns": 2, "calls": 1}


def test_a_step_is_complete_when_its_groups_are():
    house = House(Steps(lambda prompt: "ok"))

    async def work(client):
        for number in range(3):
            await client.whole("a", float(number))
        assert (await client.http.get("/status")).json()["episodes"] == {"open": 0, "waiting": 3}
        await client.whole("b", 0.25)
        await client.whole("b", None)
        first = await house.gathered()
        house.register.updated(1, last=False)
        await client.whole("a", 3.0)  # joins the one that was left over
        await client.whole("c", 4.0)
        await client.whole("c", 5.0)
        return first, await house.gathered()

    first, second = house.play(work)
    values = [
        [(g.task.id, [getattr(t.score, "value", None) for t in g.trajectories]) for g in s]
        for s in (first, second)
    ]
    assert values == [
        [("a", [0.0, 1.0]), ("b", [0.25, None])],
        [("a", [2.0, 3.0]), ("c", [4.0, 5.0])],
    ]
    unknown = first[1].trajectories[1]
    assert unknown.score == Unscored("no_reward: the agent's program does not know it")


def test_training_can_be_asked_for_and_leaves_what_is_open():
    house = House(Steps(lambda prompt: "ok"))

    async def work(client):
        assert "nothing to learn from" in error(await client.post("/train"))
        open_one = await client.begin("a")
        await client.whole("a", 1.0)
        asked = await client.post("/train", {"update": 1})
        assert (asked.status_code, asked.json()) == (202, {"update": 1})
        assert (await client.post("/train", {"update": 3})).status_code == 409
        first = await house.gathered()
        assert (await client.post("/train", {"update": 1})).status_code == 202  # it is being made
        house.register.updated(1, last=False)
        assert (await client.post("/train", {"update": 1})).status_code == 202  # it is made
        assert (await client.http.get("/status?after=0&wait=5")).json()["updates"] == 1
        await client.ask(open_one)
        await client.reward(open_one, 0.5)
        await client.post("/train")
        return first, await house.gathered()

    first, second = house.play(work)
    assert [[t.score.value for t in g.trajectories] for g in (*first, *second)] == [[1.0], [0.5]]


def test_the_recipes_sampling_rules_in_training_and_greedy_in_evaluation():
    house = House(Steps(lambda prompt: "ok"), top_p=0.9)
    seen = []
    open_session = house.register.engine.open

    def spy(ids, *, seed):
        session = open_session(ids, seed=seed)
        generate = session.generate
        session.generate = lambda sampling, watch=None: (
            seen.append((sampling, seed)),
            generate(sampling, watch),
        )[1]
        return session

    house.register.engine.open = spy

    async def work(client):
        episode = await client.begin()
        await client.ask(episode, temperature=0.1, top_p=0.5, seed=5, max_tokens=50)
        await client.ask(episode, temperature=0.7, max_tokens=500)
        measured = await client.begin("t", "test")
        await client.ask(measured, temperature=1.0)
        await client.reward(episode, 1.0)
        await client.reward(measured, 1.0, success=True)
        await client.post("/train")
        await house.gathered()
        return house.register.updated(1, last=False)

    counts = house.play(work)
    rules = house.rules.sampling
    (first, seed), (second, other), (greedy, _) = seen
    assert (first.temperature, first.top_p, first.max_tokens) == (0.7, 0.9, 50)
    assert (second.temperature, second.top_p) == (0.7, 0.9)
    assert second.max_tokens == rules.max_tokens - 3  # "ok" and its stop token are spent
    assert (greedy.temperature, greedy.max_tokens) == (0.0, 100)
    assert 5 not in (seed, other)
    assert seed != other
    assert counts == {"ignored/seed": 1.0, "ignored/temperature": 2.0, "ignored/top_p": 1.0}
    assert [episode.split for episode in house.evaluated] == ["test"]


def test_an_episode_ends_where_its_budget_does():
    house = House(Steps(lambda prompt: "a" * 30), max_tokens=40, limits=Limits(turns=9))

    async def work(client):
        episode = await client.begin()
        whole = await client.ask(episode)
        torn = await client.ask(episode)
        refused = await client.ask(episode)
        await client.reward(episode, 0.5)
        await client.post("/train")
        (group,) = await house.gathered()
        return whole, torn, refused, group.trajectories[0]

    whole, torn, refused, trajectory = house.play(work)
    assert whole.json()["choices"][0]["finish_reason"] == "stop"
    assert torn.json()["choices"][0]["finish_reason"] == "length"
    assert torn.json()["usage"]["completion_tokens"] == 9
    assert refused.status_code == 400
    assert "it may sample 40 tokens, and has; post its reward" in error(refused)
    assert refused.json()["error"]["code"] == "episode_over"
    assert trajectory.stop is Stop.LENGTH
    assert trajectory.score == Scored(0.5)


def test_turns_and_seconds_of_the_recipe_hold():
    house = House(Steps(lambda prompt: "ok"), limits=Limits(turns=1, seconds=0.2))

    async def work(client):
        one, other = await client.begin("a"), await client.begin("b")
        await client.ask(one)
        turns = await client.ask(one)
        await asyncio.sleep(0.25)
        seconds = await client.ask(other)
        for episode in (one, other):
            await client.reward(episode, 1.0)
        await client.post("/train")
        return error(turns), error(seconds), await house.gathered()

    turns, seconds, groups = house.play(work)
    assert "it may have 1 answers, and had them" in turns
    assert "its 0.2 seconds are over" in seconds
    assert [group.trajectories[0].stop for group in groups] == [Stop.TURNS, Stop.TIMEOUT]
    assert groups[1].trajectories[0].score.reason.startswith("no_tokens: ")


def test_an_episode_ends_once():
    house = House(Steps(lambda prompt: "ok"))

    async def work(client):
        episode = await client.begin()
        await client.ask(episode)
        await client.reward(episode, 1.0)
        return await client.reward(episode, 0.0), await client.ask(episode)

    for answer in house.play(work):
        assert answer.status_code == 409
        assert "is over: its reward was posted" in error(answer)


def test_abandoned_episodes_are_unscored_and_a_step_does_not_wait_for_them_for_ever():
    house = House(Steps(lambda prompt: "ok"), patience=0.3)
    house.begin_stage(tasks_per_step=1)

    async def work(client):
        crashed = await client.begin("a")
        await client.ask(crashed)
        await client.whole("a", 1.0)
        (group,) = await house.gathered()
        return group, await client.reward(crashed, 1.0)

    group, late = house.play(work)
    assert group.trajectories[0].score == Unscored("abandoned: nothing was heard of it for 0.3 seconds")
    assert group.trajectories[0].stop is Stop.TIMEOUT
    assert group.trajectories[1].score == Scored(1.0)
    assert late.status_code == 409
    assert "nothing was heard of it" in error(late)


def test_an_update_waits_for_what_is_measured_and_lets_nothing_begin_meanwhile():
    house = House(Steps(lambda prompt: "ok"))
    house.begin_stage(tasks_per_step=1, group=1)

    async def work(client):
        measured = await client.begin("m", "dev")
        await client.whole("a", 1.0)
        gathering = asyncio.ensure_future(house.gathered())
        later = asyncio.ensure_future(client.begin("n", "dev"))
        await asyncio.sleep(0.3)
        assert not gathering.done()
        assert not later.done()
        await client.ask(measured)
        await client.reward(measured, 0.2, success=True)
        await gathering
        assert house.register.look() == [True]
        await asyncio.sleep(0.1)
        assert not later.done()
        house.register.updated(1, last=False)
        return house.register.find(await later).mark.step

    assert house.play(work) == 1


def test_requests_during_an_update_wait_and_are_answered():
    engine = Steps(lambda prompt: "ok")
    house = House(engine)

    async def work(client):
        episode = await client.begin()
        await asyncio.to_thread(house.worker.rest)
        waiting = [asyncio.ensure_future(client.ask(episode)) for _ in range(5)]
        await asyncio.sleep(0.1)
        assert engine.served == []
        assert (await client.http.get("/status")).json()["episodes"]["open"] == 1  # the server answers
        house.worker.wake()
        return [answer.status_code for answer in await asyncio.gather(*waiting)]

    assert house.play(work) == [200] * 5


def test_two_hundred_at_once():
    engine = Steps(lambda prompt: "ok")
    house = House(engine)
    house.begin_stage(tasks_per_step=50, group=4)

    async def work(client):
        await asyncio.gather(*(client.whole(f"t{number // 4}", number % 4) for number in range(200)))
        return await house.gathered()

    groups = house.play(work)
    assert len(groups) == 50
    assert {len(group.trajectories) for group in groups} == {4}
    rewards = sorted(t.score.value for g in groups for t in g.trajectories)
    assert rewards == sorted([0.0, 1.0, 2.0, 3.0] * 50)
    assert all(trained_text(t) == ["ok<|im_end|>"] for g in groups for t in g.trajectories)


def test_streams_are_recorded_whole_and_a_client_that_leaves_is_not_recorded():
    house = House(Steps(lambda prompt: "a" * 100, pause=0.002))

    async def work(client):
        episode = await client.begin("whole")
        answer = await client.ask(episode, stream=True, stream_options={"include_usage": True})
        text = "".join(
            chunk["choices"][0]["delta"].get("content", "") for chunk in events(answer) if chunk["choices"]
        )
        await client.reward(episode, 1.0)
        left = await client.begin("left")
        asking = asyncio.ensure_future(client.ask(left))
        await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.sleep(0.05)
        asked_late = await client.reward(left, 1.0)
        await client.post("/train")
        return text, asked_late.json(), await house.gathered()

    text, left, groups = house.play(work)
    assert text == "a" * 100
    assert trained_text(groups[0].trajectories[0]) == ["a" * 100 + "<|im_end|>"]
    assert left["reason"].startswith("no_tokens: ")


def test_stop_texts_are_cut_off_for_the_client_and_recorded_as_sampled():
    house = House(Steps(lambda prompt: "one END two"))

    async def work(client):
        episode = await client.begin()
        answer = await client.ask(episode, stop="END", logprobs=True)
        await client.reward(episode, 1.0)
        await client.post("/train")
        return answer.json()["choices"][0], await house.gathered()

    choice, groups = house.play(work)
    assert choice["message"]["content"] == "one"
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["content"]) == len("one END")
    assert trained_text(groups[0].trajectories[0]) == ["one END"]


def test_only_this_machine_is_answered():
    house = House(Steps(lambda prompt: "ok"))

    async def work(client):
        headers = {"host": "evil.example", "content-type": "application/json"}
        return [
            await client.http.post("/episodes", content=b'{"task": "t"}', headers=headers),
            await client.http.get("/status", headers=headers),
            await client.http.post("/finish", content=b"{}"),  # as a page's form would send it
        ]

    assert [answer.status_code for answer in house.play(work)] == [403, 403, 415]


def test_the_end_is_asked_for_and_the_run_is_over():
    house = House(Steps(lambda prompt: "ok"))

    async def work(client):
        lost = await client.begin()
        finishing = asyncio.ensure_future(client.post("/finish"))
        with pytest.raises(Over):
            await house.gathered()
        house.register.practised()
        assert (await client.post("/episodes", {"task": "t"})).status_code == 409
        house.register.close({"run": "somewhere"})
        late = await client.reward(lost, 1.0)
        assert "practice is over" in error(late)
        assert (await client.post("/episodes", {"task": "t"})).status_code == 409
        return (await finishing).json()

    assert house.play(work) == {"run": "somewhere"}


def test_waiting_for_a_status_ends_in_time():
    house = House(Steps(lambda prompt: "ok"))

    async def work(client):
        began = time.monotonic()
        status = (await client.http.get("/status?after=0&wait=0.2")).json()
        assert (await client.http.get("/status?after=x")).status_code == 400
        return time.monotonic() - began, status

    seconds, status = house.play(work)
    assert 0.2 <= seconds < 5
    assert status == {
        "phase": "practice",
        "updates": 0,
        "stage": {"name": "practice", "step": 0, "steps": 9, "tasks_per_step": 2, "group": 2},
        "episodes": {"open": 0, "waiting": 0},
    }
