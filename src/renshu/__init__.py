"""Renshu (練習, practice): agentic reinforcement learning for small language models.

Every public name is imported when it is first asked for, so that `import renshu` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from renshu.algorithms import GrpoConfig, SftConfig
    from renshu.chat import ChatFormat
    from renshu.engines import Sampling
    from renshu.envs import (
        Environment,
        Tasks,
        call,
        check_env,
        play_through,
        reward,
        say,
        success,
        think,
    )
    from renshu.errors import InfrastructureError, RenshuError, ToolError
    from renshu.evaluation import evaluate, mcnemar, wilson
    from renshu.models import ModelSettings, reward_model
    from renshu.pipeline import Agent, Recipe, build_agent, load_agent, read_recipe, resume_run, train_recipe
    from renshu.report import build_report
    from renshu.rollout import collect
    from renshu.tools import tool
    from renshu.tree import TokenTree, token_logprobs
    from renshu.types import (
        Group,
        Message,
        Row,
        Scored,
        Segment,
        Stop,
        Task,
        ToolCall,
        Trajectory,
        Unscored,
    )

__version__ = "0.1.0"

_HOMES = {
    "algorithms": ("GrpoConfig", "SftConfig"),
    "chat": ("ChatFormat",),
    "engines": ("Sampling",),
    "envs": (
        "Environment",
        "Tasks",
        "call",
        "check_env",
        "play_through",
        "reward",
        "say",
        "success",
        "think",
    ),
    "errors": ("InfrastructureError", "RenshuError", "ToolError"),
    "evaluation": ("evaluate", "mcnemar", "wilson"),
    "models": ("ModelSettings", "reward_model"),
    "pipeline": ("Agent", "Recipe", "build_agent", "load_agent", "read_recipe", "resume_run", "train_recipe"),
    "report": ("build_report",),
    "rollout": ("collect",),
    "tools": ("tool",),
    "tree": ("TokenTree", "token_logprobs"),
    "types": (
        *("Group", "Message", "Row", "Scored", "Segment", "Stop", "Task", "ToolCall", "Trajectory"),
        "Unscored",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Agent",
    "ChatFormat",
    "Environment",
    "Group",
    "GrpoConfig",
    "InfrastructureError",
    "Message",
    "ModelSettings",
    "Recipe",
    "RenshuError",
    "Row",
    "Sampling",
    "Scored",
    "Segment",
    "SftConfig",
    "Stop",
    "Task",
    "Tasks",
    "TokenTree",
    "ToolCall",
    "ToolError",
    "Trajectory",
    "Unscored",
    "build_agent",
    "build_report",
    "call",
    "check_env",
    "collect",
    "evaluate",
    "load_agent",
    "mcnemar",
    "play_through",
    "read_recipe",
    "resume_run",
    "reward",
    "reward_model",
    "say",
    "success",
    "think",
    "token_logprobs",
    "tool",
    "train_recipe",
    "wilson",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'renshu' has no attribute {name!r}")
    return getattr(import_module(f"renshu.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
