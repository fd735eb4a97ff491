"""What can be known to fail is said before training, where it costs seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from renshu.algorithms import SftConfig
from renshu.chat import ChatFormat
from renshu.envs import Environment, Interaction, require_env
from renshu.errors import ConfigError, ContextOverflow
from renshu.pipeline.recipe import Recipe
from renshu.types import Task

SAMPLED_TASKS = 16  # of each split, whose prompts are measured


def require_playable(environment: type[Environment], recipe: Recipe) -> None:
    """Raise ContractError, DataError or ConfigError if the recipe cannot be played in this environment."""
    require_env(environment)
    assert environment.tasks is not None
    environment.tasks.split("dev")
    environment.tasks.split("test")
    for stage in recipe.stages:
        if stage.sft is not None and stage.data is None and stage.trajectories is None:
            _check_demonstrations(environment, stage.name, stage.sft)
    if "few-shot" in recipe.eval.compare and not environment.has_script("solve"):
        raise ConfigError(
            f"eval.compare: few-shot needs solved dialogues, and {environment.__name__} has no solve()"
        )


def _check_demonstrations(environment: type[Environment], stage: str, config: SftConfig) -> None:
    scripts: tuple[tuple[Literal["solve", "hurried"], bool], ...] = (
        ("solve", config.careful > 0),
        ("hurried", config.careful < 1),
    )
    for script, wanted in scripts:
        if wanted and not environment.has_script(script):
            raise ConfigError(
                f"stage {stage}: {environment.__name__} has no {script}() to demonstrate with; "
                "write one, change `careful`, or name a file of dialogues with sft.data"
            )


def require_room(environment: type[Environment], chat: ChatFormat, context: int) -> int:
    """Tokens of the longest prompt seen. Raises ContextOverflow if one leaves no room to answer."""
    assert environment.tasks is not None
    splits = (environment.tasks.train, environment.tasks.dev, environment.tasks.test)
    return max(_longest(environment, chat, split[:SAMPLED_TASKS], context) for split in splits if split)


def _longest(environment: type[Environment], chat: ChatFormat, tasks: Sequence[Task], context: int) -> int:
    longest = 0
    for task in tasks:
        opening = Interaction(environment(), task)
        length = len(chat.prompt(opening.messages, opening.schemas))
        if length >= context:
            raise ContextOverflow(
                f"the prompt of task {task.id} has {length} tokens, the model's context {context}: "
                "shorten the system prompt, the tools or the request, or take a model with a longer context"
            )
        longest = max(longest, length)
    return longest


def require_divisible(recipe: Recipe, processes: int) -> None:
    """Raise ConfigError for what one process does, but several together cannot."""
    if processes == 1:
        return
    if recipe.engine.kind == "vllm":
        raise ConfigError(
            f"engine.kind: vllm is told the weights of one process, and there are {processes}: leave out "
            "--processes (the server may use many GPUs), or sample with engine.kind=native"
        )
    if recipe.parallel.kind != "fsdp":
        return
    if recipe.model.adapter is not None and recipe.model.adapter.kind == "qlora":
        raise ConfigError("parallel.kind: fsdp cannot cut weights in four bits (qlora): set it to ddp")
    for number, stage in enumerate(recipe.stages):
        if stage.ppo is not None and stage.ppo.value.critic == "separate":
            raise ConfigError(
                f"stages.{number}.ppo.value.critic: separate is a second model, which parallel.kind: fsdp "
                "does not cut: set it to head, or parallel.kind to ddp"
            )
