"""`renshu check` as a function: an environment, a recipe or TRL reward functions → what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from renshu.algorithms import PracticeConfig
from renshu.check.cases import CaseResult, failed_cases, play_cases, read_cases, require_cases
from renshu.check.dry_run import DryRun, Sample, check_dry_run, rehearse, sample_of
from renshu.check.environment import check_environment
from renshu.check.findings import Finding, found, sort
from renshu.check.scores import PolicyLine
from renshu.check.template import check_dialogues, check_prompts, check_template, gold_dialogues
from renshu.envs import Environment, Tasks
from renshu.envs.adapters.trl import is_trl_reward
from renshu.errors import ConfigError, DataError, RenshuError, TemplateError
from renshu.pipeline.agent import Agent, build_agent
from renshu.pipeline.environments import load_environment, load_file
from renshu.pipeline.practice import limits_of, sampling_of
from renshu.pipeline.recipe import Recipe, Stage, built_in_recipes, find_recipe, read_recipe
from renshu.pipeline.supply import Supplier
from renshu.seeding import stable_hash
from renshu.types import Labelled, Pair, Row, Task

REHEARSED = 8  # tasks of a dry run
PRACTICE = {"name": "practice", "grpo": {}}  # the stage that is rehearsed where there is no recipe
REQUESTS = ("question", "problem", "instruction", "input", "query", "text")  # what rows call the request
UNPLAYABLE = frozenset(
    {
        *("not_loaded", "not_made", "bad_system", "bad_rubric", "no_reward", "no_outcome", "no_turns"),
        *("no_tasks", "bad_tool", "tasks_fail", "setup_failed", "setup_random", "play_failed", "hangs"),
    }
)  # findings after which no episode can be sampled


@dataclass(frozen=True)
class CheckReport:
    """All that was found, the worst first. cases: of must-pass cases; dry_run: None if there was none."""

    target: str
    findings: list[Finding]
    tools: list[dict[str, Any]] = field(default_factory=list)
    policies: list[PolicyLine] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)
    dry_run: DryRun | None = None

    @property
    def passed(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}


@dataclass(frozen=True)
class _Target:
    """What is checked. recipe: None for a bare environment; base: the folder of its relative paths."""

    environment: type[Environment] | None
    findings: list[Finding]
    recipe: Recipe | None = None
    base: Path = Path()
    rows_only: bool = False  # TRL knows neither success nor splits


def check(
    name: str,
    *,
    overrides: Sequence[str] = (),
    preset: str | None = None,
    model: str | None = None,
    cases: Path | None = None,
    data: Path | None = None,
    dry_run: bool = True,
    samples: int = 12,
    seconds: float = 60.0,
) -> CheckReport:
    """Check a target. Raises a RenshuError where the question itself is wrong: no such recipe, model or file.

    model: rehearse with it, where the target is no recipe. cases: must-pass cases beside the recipe's own.
    data: rows for a file of TRL reward functions. samples: tasks of each split that are played without a
    model, in `seconds` at most.
    """
    target = _find(name, overrides, preset, model, data)
    findings = list(target.findings)
    if target.environment is None:
        return CheckReport(name, sort(findings))
    checked = check_environment(target.environment, samples=samples, budget=seconds)
    excused = {"empty_split", "no_success", "no_gold"} if target.rows_only else set()
    findings += [finding for finding in checked.findings if finding.code not in excused]
    report = CheckReport(name, findings, checked.tools, checked.policies)
    if any(finding.code in UNPLAYABLE for finding in findings):
        return replace(report, findings=sort(findings))
    results = _cases(target, cases)
    findings += failed_cases(results)
    rehearsed = None
    if target.recipe is not None:
        rehearsed, more = _with_model(target, target.environment, dry_run)
        findings += more
    return replace(report, findings=sort(findings), cases=results, dry_run=rehearsed)


def must_pass(recipe: Recipe, environment: type[Environment], base: Path) -> list[CaseResult]:
    """The results of the recipe's must-pass cases. Raises ContractError if one fails."""
    if recipe.checks.must_pass is None:
        return []
    return require_cases(environment, read_cases(base / recipe.checks.must_pass))


def must_pass_record(recipe: Recipe, environment: type[Environment], base: Path) -> dict[str, Any] | None:
    """What `must_pass.json` of a run holds: the cases as they came out after training; None without cases."""
    if recipe.checks.must_pass is None:
        return None
    results = play_cases(environment, read_cases(base / recipe.checks.must_pass))
    passed = sum(result.passed for result in results)
    return {"cases": len(results), "passed": passed, "results": [asdict(result) for result in results]}


def _find(
    name: str, overrides: Sequence[str], preset: str | None, model: str | None, data: Path | None
) -> _Target:
    if Path(name).suffix in (".yaml", ".yml") or name in built_in_recipes():
        given = [*overrides, *([f"model.name={model}"] if model is not None else [])]
        read = read_recipe(name, given, preset=preset)
        return _loaded(read.environment, read, find_recipe(name).parent)
    if overrides or preset:
        raise ConfigError(f"{name} is no recipe: it has no settings to override")
    if data is not None:
        return _trl(Path(name), data)
    recipe: Recipe | None = None
    if model is not None:
        recipe = Recipe.from_dict({"env": name, "model": {"name": model}, "stages": [PRACTICE]})
    return _loaded(name, recipe, Path())


def _loaded(env: str, recipe: Recipe | None, base: Path) -> _Target:
    try:
        return _Target(load_environment(env, base), [], recipe, base)
    except RenshuError as error:
        return _Target(None, [found("not_loaded", env, str(error))], recipe, base)


def _trl(path: Path, data: Path) -> _Target:
    """An environment of the file's reward functions and the rows. Raises ConfigError, DataError."""
    try:
        module = load_file(path)
    except ConfigError as error:
        return _Target(None, [found("not_loaded", str(path), str(error))])
    rewards = [
        value
        for value in vars(module).values()
        if callable(value) and getattr(value, "__module__", None) == module.__name__ and _is_reward(value)
    ]
    if not rewards:
        raise ConfigError(f"{path} has no reward function of TRL's form: def reward(completions, **kwargs)")
    rows = Tasks.from_jsonl(data, shares=(1.0, 0.0, 0.0))
    findings: list[Finding] = []
    tasks = list(rows.train)
    if not any("prompt" in task.fields for task in tasks):
        key = next((key for key in REQUESTS if key in tasks[0].fields), None)
        what = f"the columns are {', '.join(tasks[0].fields)}"
        findings.append(found("no_prompt_column", str(data), what))
        if key is None:
            return _Target(None, findings)
        tasks = [Task(task.id, {**task.fields, "prompt": task.fields.get(key)}) for task in tasks]
    environment = Environment.from_functions(
        tools=[], rewards=rewards, tasks=Tasks(tasks, set_aside=rows.set_aside)
    )
    return _Target(environment, findings, rows_only=True)


def _is_reward(function: Any) -> bool:
    try:
        return is_trl_reward(function)
    except (TypeError, ValueError):
        return False


def _cases(target: _Target, more: Path | None) -> list[CaseResult]:
    assert target.environment is not None
    own = target.recipe.checks.must_pass if target.recipe is not None else None
    paths = [*([target.base / own] if own is not None else []), *([more] if more is not None else [])]
    return [result for path in paths for result in play_cases(target.environment, read_cases(path))]


def _with_model(
    target: _Target, environment: type[Environment], dry_run: bool
) -> tuple[DryRun | None, list[Finding]]:
    """Template, prompts and budgets, then the dry run."""
    recipe = target.recipe
    assert recipe is not None
    assert environment.tasks is not None
    try:
        agent = build_agent(recipe.model, target.base)
    except TemplateError as error:
        return None, [found("template_refused", "the chat template", str(error))]
    chat, context = agent.chat, agent.engine.context
    findings = list(check_template(environment, chat, asked=recipe.model.template == "fallback"))
    tasks = list(environment.tasks.split("train")[:REHEARSED])
    try:
        findings += check_prompts(environment, chat, context, tasks)
        dialogues = gold_dialogues(environment, chat, tasks)
    except TemplateError as error:
        return None, [*findings, found("template_refused", "the chat template", str(error))]
    except RenshuError as error:  # the gold solution cannot be played
        return None, [*findings, found("play_failed", "solve()", str(error))]
    findings += check_dialogues(dialogues, chat, _budgets(recipe))
    findings += _turns(recipe, [sum(m.role == "assistant" for m in one.messages) for one in dialogues])
    samples, read = _data(target, agent, environment)
    findings += read
    if not dry_run or any(finding.code == "prompt_too_long" for finding in findings):
        return None, findings
    rehearsed = _rehearsed(target, agent, environment, tasks)
    rehearsed = replace(rehearsed, samples=[*samples, *rehearsed.samples])
    return rehearsed, [*findings, *check_dry_run(rehearsed, bool(environment().tools()))]


def _budgets(recipe: Recipe) -> dict[str, int]:
    """Keys of the recipe that bound what the model samples → tokens."""
    practice = {
        f"stages.{index}.sample.max_tokens": stage.sample.max_tokens
        for index, stage in enumerate(recipe.stages)
        if stage.samples
    }
    return {"eval.max_tokens": recipe.eval.max_tokens, **practice}


def _turns(recipe: Recipe, needed: Sequence[int]) -> list[Finding]:
    most = max(needed, default=0)
    return [
        found("turns_too_few", f"stages.{index}.sample.turns", f"solve() takes {most} replies")
        for index, stage in enumerate(recipe.stages)
        if stage.samples and stage.sample.turns is not None and stage.sample.turns < most
    ]


def _rehearsed(
    target: _Target, agent: Agent, environment: type[Environment], tasks: Sequence[Task]
) -> DryRun:
    recipe = target.recipe
    assert recipe is not None
    index, stage = next(
        ((i, stage) for i, stage in enumerate(recipe.stages) if stage.samples),
        (0, Stage.model_validate(PRACTICE)),
    )
    assert isinstance(stage.config, PracticeConfig)
    return rehearse(
        agent.engine,
        agent.chat,
        environment,
        tasks,
        group=stage.config.group,
        sampling=sampling_of(stage, agent.chat.stop_ids),
        limits=limits_of(stage),
        seed=stable_hash(recipe.seed, stage.name),
        first=index == 0,
    )


def _data(
    target: _Target, agent: Agent, environment: type[Environment]
) -> tuple[list[Sample], list[Finding]]:
    """What stages that do not sample learn from: the first row of the first one, and how much there is."""
    recipe = target.recipe
    assert recipe is not None
    samples: list[Sample] = []
    findings: list[Finding] = []
    for index, stage in enumerate(recipe.stages):
        if stage.samples:
            continue
        where = f"stages.{index}.{stage.algorithm}"
        if demonstrated := stage.sft is not None and stage.data is None and stage.trajectories is None:
            assert stage.sft is not None
            few = stage.sft.model_copy(update={"demonstrations": min(4, stage.sft.demonstrations)})
            stage = stage.model_copy(update={"sft": few})
        try:
            supply = Supplier(recipe, environment, agent, target.base).supply(stage)
        except DataError as error:
            findings.append(found("data_refused", where, str(error)))
            continue
        if supply is None:
            continue
        if not demonstrated:
            what = "; ".join([f"{len(supply.items)} to learn from", *supply.notes])
            findings.append(found("data_read", where, what))
        if not samples:
            samples = _shown(agent, stage, supply.items[0])
    return samples, findings


def _shown(agent: Agent, stage: Stage, item: Row | Pair | Labelled) -> list[Sample]:
    """A row as it would be trained on, both sides of a pair."""
    if isinstance(item, Pair):
        rows = [("a chosen side", item.chosen), ("its rejected side", item.rejected)]
    elif isinstance(item, Labelled):
        rows = [(f"a row with a thumb {'up' if item.good else 'down'}", item.row)]
    else:
        rows = [("a row", item)]
    of = f"of {stage.name} ({stage.algorithm})"
    return [sample_of(agent.chat, row, f"{what} {of}") for what, row in rows]
