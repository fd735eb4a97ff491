"""Free functions, and what people bring from TRL, unchanged."""

import pytest

from renshu.envs import (
    Environment,
    Interaction,
    Tasks,
    call,
    check_env,
    from_environment_factory,
    play_through,
    reward,
    say,
)
from renshu.envs.adapters.trl import call_reward, dialogue
from renshu.errors import ContractError
from renshu.rewards import cause_of
from renshu.types import Message, Segment, Stop, Task, Trajectory, Unscored

TASK = Task("sums/train/0", {"prompt": "What is 2 + 3?", "answer": "5"})
TASKS = Tasks(train=[TASK])


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: first number
        b: second number
    """
    return a + b


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


async def slow_exact(prompts, completions, completion_ids, answer, log_metric, **kwargs):
    log_metric("seen", 1.0)
    return [
        None if prompt == "" else float(answer[0] in text)
        for prompt, text in zip(prompts, completions, strict=True)
    ]


@reward(0.5, kind="format")
def short(trajectory):
    return float(len(trajectory.messages[-1].content) < 5)


def solved(task, trajectory):
    return task["answer"] in trajectory.messages[-1].content


Sums = Environment.from_functions(
    tools=[add], rewards=[exact, slow_exact, short], success=solved, tasks=TASKS, system="Add."
)


def play(environment, *moves, task=TASK):
    return play_through(environment, task, moves)


def test_free_functions_and_trl_rewards_together():
    trajectory = play(Sums(), call("add", a=2, b=3), say("5"))
    assert [m.content for m in trajectory.messages] == ["Add.", "What is 2 + 3?", "", "5", "5"]
    assert trajectory.score.parts == {"exact": 1.0, "slow_exact": 1.0, "short": 1.0}
    assert (trajectory.score.value, trajectory.score.success) == (2.5, True)
    other = play(Sums(), say("It is 5."))
    assert other.score.parts == {"exact": 0.0, "slow_exact": 1.0, "short": 0.0}
    assert check_env(Sums) == []


def test_functions_with_unknown_parameters_are_refused():
    with pytest.raises(ContractError, match="wrong takes reply"):
        Environment.from_functions(tools=[], rewards=[lambda: 1.0, wrong])


def wrong(reply):
    return 1.0


def test_conversational_prompts_are_kept_as_they_are():
    prompt = [{"role": "system", "content": "Own."}, {"role": "user", "content": "2 + 3?"}]
    task = Task("sums/train/1", {"prompt": prompt, "answer": "5"})
    trajectory = play(Sums(), call("add", a=2, b=3), say("5"), task=task)
    assert dialogue(trajectory) == (
        prompt,
        [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
                ],
            },
            {"role": "tool", "content": "5", "name": "add"},
            {"role": "assistant", "content": "5"},
        ],
    )


def test_reward_functions_get_columns_and_the_ids_of_the_completion():
    seen = {}

    def spy(prompts, completions, completion_ids, **kwargs):
        seen.update(kwargs, prompts=prompts, completions=completions, completion_ids=completion_ids)
        return [0.25]

    messages = (Message("user", "What is 2 + 3?"), Message("assistant", "5", reasoning="2+3"))
    segments = (Segment((1, 2)), Segment((3, 4), True, (0.0, 0.0)))
    trajectory = Trajectory(TASK, segments, messages, Stop.ANSWERED, Unscored("not scored yet"))
    assert call_reward(spy, trajectory) == 0.25
    assert seen["prompts"] == ["What is 2 + 3?"]
    assert seen["completions"] == ["<think>\n2+3\n</think>\n\n5"]
    assert seen["completion_ids"] == [[3, 4]]
    assert seen["answer"] == ["5"]
    assert "prompt" not in seen
    assert seen["trainer_state"] is None


@pytest.mark.parametrize("returned", [[1.0, 0.0], 1.0, ["1"], [float("inf")]])
def test_a_bad_reward_list_leaves_the_rollout_unscored(returned):
    def bad(completions, **kwargs):
        return returned

    environment = Environment.from_functions(tools=[], rewards=[bad], tasks=TASKS)
    score = play(environment(), say("5")).score
    assert cause_of(score) == "reward_failed"
    assert "'bad'" in score.reason


class Counter:
    """A class as TRL's `environment_factory` wants it."""

    def reset(self, **row) -> str | None:
        self.value = 0
        return f" Start at {row['start']}."

    def increment(self, step: int) -> int:
        """Increase the counter.

        Args:
            step: by how much
        """
        self.value += step
        return self.value

    def decrement(self, step: int) -> int:
        """Decrease the counter.

        Args:
            step: by how much
        """
        self.value -= step
        return self.value

    def _hidden(self):
        return self.value

    @property
    def double(self):
        return 2 * self.value

    def get_reward(self) -> float:
        return self.value / 10


COUNT = Task("count/train/0", {"prompt": [{"role": "user", "content": "Count to ten."}], "start": 0})


def test_environment_factories_are_accepted_unchanged():
    environment = from_environment_factory(Counter, tasks=Tasks(train=[COUNT]))
    interaction = Interaction(environment(), COUNT)
    assert interaction.messages == [Message("user", "Count to ten. Start at 0.")]
    assert list(interaction.tools) == ["decrement", "increment"]  # alphabetical, as TRL lists them
    trajectory = play(environment(), call("increment", step=10), say("Done."), task=COUNT)
    assert trajectory.score.parts == {"Counter": 1.0}
    assert trajectory.score.success is True
    half = play(environment(), call("increment", step=5), say("Done."), task=COUNT).score
    assert (half.value, half.success) == (0.5, False)
    assert check_env(environment) == []


def test_factories_with_reward_functions_and_their_own_success():
    def even(completions, environments, **kwargs):
        return [float(environment.value % 2 == 0) for environment in environments]

    environment = from_environment_factory(
        Counter, tasks=Tasks(train=[COUNT]), rewards=[even], success=lambda counter: counter.value == 4
    )
    score = play(environment(), call("increment", step=4), say("Done."), task=COUNT).score
    assert score.parts == {"even": 1.0, "Counter": 0.4}
    assert score.value == pytest.approx(1.4)
    assert score.success is True


def test_a_task_without_a_request_is_refused():
    class Silent(Counter):
        def reset(self, **row):
            return None

    environment = from_environment_factory(Silent, tasks=TASKS)
    with pytest.raises(ContractError, match="gives no request"):
        environment().opening(Task("count/train/1", {}))
