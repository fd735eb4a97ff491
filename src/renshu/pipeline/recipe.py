"""The recipe: model + environment + stages + evaluation, in one file of settings.

Every key is read by something; what a recipe leaves out has a default, written to `recipe.resolved.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from renshu.algorithms.dpo import DpoConfig
from renshu.algorithms.grpo import GrpoConfig
from renshu.algorithms.kto import KtoConfig
from renshu.algorithms.ppo import PpoConfig
from renshu.algorithms.protocol import OptimiserConfig, PracticeConfig
from renshu.algorithms.sft import SftConfig
from renshu.config import StrictModel, apply_overrides, apply_preset, dump_yaml, load_yaml
from renshu.engines.protocol import COOLEST
from renshu.engines.settings import EngineSettings
from renshu.errors import ConfigError
from renshu.evaluation.samples import Tries
from renshu.models import ModelSettings

ALGORITHMS = ("sft", "dpo", "kto", "grpo", "ppo")  # the keys of a stage that name one


class SampleSettings(StrictModel):
    """How episodes of a stage are sampled.

    max_tokens: tokens the model may sample in one episode, over all its turns. turns: its replies, if fewer
    than the environment allows. seconds: of wall clock, looked at between turns (runs then depend on the
    machine).
    """

    max_tokens: int = Field(512, ge=1)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)
    turns: int | None = Field(None, ge=1)
    seconds: float | None = Field(None, gt=0)


class StopWhen(StrictModel):
    """End a stage once success on dev has reached `success`, or has not risen for `patience` looks."""

    success: float | None = Field(None, gt=0, le=1)
    patience: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.success is None and self.patience is None:
            raise ValueError("say success: 0.97, patience: 3 or both")
        return self


class Stage(StrictModel):
    """One algorithm with its limits: exactly one of `ALGORITHMS`.

    start: whose weights to begin with, if not those of the stage before. reference: what its loss compares
    with, the model as the stage began or the untrained one.
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    start: str | None = Field(None, alias="from")
    sft: SftConfig | None = None
    dpo: DpoConfig | None = None
    kto: KtoConfig | None = None
    grpo: GrpoConfig | None = None
    ppo: PpoConfig | None = None
    reference: Literal["start", "base"] = "start"
    sample: SampleSettings = SampleSettings()
    stop_when: StopWhen | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_stored_rollouts(cls, data: Any) -> Any:
        for name in ("grpo", "ppo") if isinstance(data, Mapping) else ():
            given = data.get(name)
            stored = {"data", "trajectories"} & given.keys() if isinstance(given, Mapping) else set()
            if stored:
                what = " and ".join(sorted(stored))
                raise ValueError(
                    f"{name} learns from what its own steps sample; {what} would be of another policy: use "
                    "sft, dpo or kto for that"
                )
        return data

    @model_validator(mode="after")
    def _one_algorithm(self) -> Self:
        given = [name for name in ALGORITHMS if getattr(self, name) is not None]
        if len(given) != 1:
            known = f"{', '.join(ALGORITHMS[:-1])} and {ALGORITHMS[-1]}"
            found = " and ".join(given) or "none"
            raise ValueError(f"stage {self.name!r} needs exactly one of {known}, not {found}")
        if not self.samples and self.sample != SampleSettings():
            raise ValueError(f"sample: {self.algorithm} samples nothing here; leave sample out")
        if self.samples and self.sample.temperature < COOLEST:
            raise ValueError(
                f"sample.temperature: below {COOLEST} is greedy; {self.algorithm} learns from differences: "
                "sample above 0"
            )
        if self.reference == "base" and not self.compares:
            raise ValueError(f"reference: {self.algorithm} compares with nothing here; leave reference out")
        return self

    @property
    def algorithm(self) -> str:
        """The one of `ALGORITHMS` that it plays."""
        return next(name for name in ALGORITHMS if getattr(self, name) is not None)

    @property
    def config(self) -> OptimiserConfig:
        """The settings of its algorithm."""
        config: OptimiserConfig = getattr(self, self.algorithm)
        return config

    @property
    def samples(self) -> bool:
        """Whether every step samples rollouts; else the stage learns from data."""
        return isinstance(self.config, PracticeConfig) and self.data is None and self.trajectories is None

    @property
    def data(self) -> str | None:
        """The file that it learns from."""
        return getattr(self.config, "data", None)

    @property
    def trajectories(self) -> str | None:
        """The stored rollouts that it learns from."""
        return getattr(self.config, "trajectories", None)

    @property
    def compares(self) -> bool:
        """Whether its loss compares with a reference model."""
        beta: float = getattr(self.config, "beta", 0.0)
        return beta > 0 and not getattr(self.config, "reference_free", False)

    @property
    def within_groups(self) -> bool:
        """Whether it compares rollouts of a task, so that a group whose rewards are equal teaches nothing."""
        return self.algorithm == "dpo" or getattr(self.config, "baseline", "none") != "none"


class EvaluationSettings(StrictModel):
    """How arms are compared: greedily, on the same held-out tasks.

    tasks: of the test split. dev_tasks: of the dev split, on which checkpoints are chosen.
    every: steps between two looks at the dev split. compare: arms beside each stage.
    shots: solved dialogues in the prompt of the arm `few-shot`. max_tokens: sampled tokens of an episode.
    at_once: episodes that run together. samples: further tries of every task, at a temperature.
    """

    tasks: int = Field(300, ge=1)
    dev_tasks: int = Field(64, ge=1)
    every: int = Field(10, ge=1)
    compare: tuple[Literal["base", "few-shot"], ...] = ("base",)
    shots: int = Field(2, ge=1)
    at_once: int = Field(64, ge=1)
    max_tokens: int = Field(512, ge=1)
    samples: Tries | None = None


class CheckpointSettings(StrictModel):
    """When a run is saved so that `renshu resume` can go on: every so many steps, and after each stage.

    keep: how many of these there are at most; the oldest go first.
    """

    every: int = Field(10, ge=1)
    keep: int = Field(2, ge=1)


class ParallelSettings(StrictModel):
    """How several processes keep the weights (`renshu train --processes`).

    kind: `ddp`, each has all of them (data parallelism), or `fsdp`, each has a part of them, of their
    gradients and of the moments (FSDP2). One process has all, whatever it says.
    """

    kind: Literal["ddp", "fsdp"] = "ddp"


class CheckSettings(StrictModel):
    """What must hold for a run. must_pass: a file of cases that are played before and after training."""

    must_pass: str | None = None


class Recipe(StrictModel):
    """All settings of a run; `docs/guide-recipes.md` explains every key.

    `env`, `data`, `checks.must_pass` and `model.template` are looked up from the recipe's folder; `out` and
    `model.name` from the current one. env: None where the agents run elsewhere (`renshu proxy`).
    """

    seed: int = Field(0, ge=0)
    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    env: str | None = None
    stages: tuple[Stage, ...] = Field(min_length=1)
    eval: EvaluationSettings = EvaluationSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    parallel: ParallelSettings = ParallelSettings()
    checks: CheckSettings = CheckSettings()
    trackers: tuple[str, ...] = ()
    threads: int | None = Field(None, ge=1)
    out: str = "runs/{recipe}-{seed}"

    @property
    def environment(self) -> str:
        """Where the agent acts. Raises ConfigError for a recipe that leaves it to `renshu proxy`."""
        if self.env is None:
            raise ConfigError(
                "env is missing: name an environment (flights, file.py:Class); only agents that run "
                "elsewhere, and train by `renshu proxy`, have none"
            )
        return self.env

    @model_validator(mode="after")
    def _told_by_a_server(self) -> Self:
        for stage in self.stages if self.engine.kind == "vllm" else ():
            sample = stage.sample
            if sample.temperature != 1 and (sample.top_k or sample.top_p < 1 or sample.min_p):
                raise ValueError(
                    f"stage {stage.name!r}: vLLM tells no log-probs of a temperature other than 1 together "
                    "with top_p, top_k or min_p: turn these off, or set sample.temperature to 1"
                )
        return self

    @field_validator("stages")
    @classmethod
    def _names_differ(cls, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        names = [stage.name for stage in stages]
        taken = {"base", "few-shot", "final", *(n for n in names if names.count(n) > 1)} & set(names)
        if taken:
            raise ValueError(
                f"stage names must differ from each other and from base, few-shot, final: {sorted(taken)}"
            )
        return stages


def built_in_recipes() -> list[str]:
    """Names of the recipes that come with Renshu."""
    folder = files("renshu") / "recipes"
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def find_recipe(name: str) -> Path:
    """The file of a recipe: a path, or the name of a built-in one. Raises ConfigError."""
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"{path}: no such recipe file")
        return path
    if name in built_in_recipes():
        return Path(str(files("renshu") / "recipes" / f"{name}.yaml"))
    raise ConfigError(
        f"{name!r} is neither a recipe file (*.yaml) nor built in ({', '.join(built_in_recipes())})"
    )


def recipe_name(path: Path) -> str:
    """What a recipe is called: as its file, or as its folder if the file is just `recipe.yaml`."""
    return path.resolve().parent.name or path.stem if path.stem == "recipe" else path.stem


def read_recipe(name: str, overrides: Sequence[str] = (), *, preset: str | None = None) -> Recipe:
    """The recipe of a file or built-in name, with `key=value` overrides. Raises ConfigError."""
    path = find_recipe(name)
    data = apply_overrides(apply_preset(load_yaml(path), preset), overrides)
    return Recipe.from_dict(data, source=path)


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as YAML with every default written out but "none"; reading it gives the same recipe."""
    data: dict[str, Any] = recipe.model_dump(mode="json", exclude_none=True, by_alias=True)
    return dump_yaml(data)
