"""The pipeline: a recipe becomes objects, the objects a run folder."""

from renshu.pipeline.agent import Agent, build_agent
from renshu.pipeline.loaded_agent import load_agent
from renshu.pipeline.recipe import Recipe, read_recipe
from renshu.pipeline.resume import resume_run
from renshu.pipeline.train import train_recipe

__all__ = ["Agent", "Recipe", "build_agent", "load_agent", "read_recipe", "resume_run", "train_recipe"]
