"""Environments: tools, reward, success and terminator of one task, and what checks and demonstrates them."""

from renshu.envs.adapters.trl import from_environment_factory
from renshu.envs.contract import Problem, check_env, require_env
from renshu.envs.demonstrations import Demonstration, demonstration_row, demonstrations
from renshu.envs.environment import Environment, reward, success
from renshu.envs.interaction import Interaction, play_through
from renshu.envs.moves import Moves, call, say, think
from renshu.envs.tasks import Tasks

__all__ = [
    "Demonstration",
    "Environment",
    "Interaction",
    "Moves",
    "Problem",
    "Tasks",
    "call",
    "check_env",
    "demonstration_row",
    "demonstrations",
    "from_environment_factory",
    "play_through",
    "require_env",
    "reward",
    "say",
    "success",
    "think",
]
