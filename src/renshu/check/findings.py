"""What a check found, and what to do about it: every code with its severity and its advice in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

ADVICE: dict[str, tuple[Severity, str]] = {
    # declarations
    "not_loaded": ("error", "make the file run by itself, then check again"),
    "not_made": ("error", "let the class be made without arguments"),
    "bad_system": ("error", "write `system` as text"),
    "bad_rubric": (
        "error",
        "keep one @success; give weights that are numbers and kinds that exist",
    ),
    "no_reward": ("error", "mark a method with @reward(1.0), the parentheses included"),
    "no_outcome": ("error", "let one reward be of kind outcome (or judge)"),
    "no_success": ("error", "mark a method with @success: the truth that evaluation reports"),
    "no_turns": ("error", "set `max_turns` to at least 1"),
    "no_tasks": ("error", "set `tasks` to Tasks with a train split that is not empty"),
    "weights_zero": ("error", "give a reward of kind outcome a weight above 0"),
    "weight_zero": ("note", "a part of weight 0 is measured, not trained on; leave it if that is meant"),
    # tools
    "no_docstring": ("error", "write what the tool is for: the model reads it"),
    "bad_tool": ("error", "give every parameter a type hint that has a JSON form"),
    "tool_name_collision": ("error", "rename one of the tools"),
    "tool_shadows": ("error", "rename the tool: the environment itself uses this name"),
    "tool_name_long": ("error", "use at most 64 characters"),
    "tool_name_form": ("warning", "use the letters a-z, digits and _ in names; documentation may be Chinese"),
    "tool_names_alike": ("warning", "a small model mixes up names that differ by case only: rename one"),
    "docstring_thin": ("warning", "say in a sentence what the tool does and what it answers"),
    "docstring_long": ("warning", "shorten it: every prompt carries it"),
    "docstring_stranger": ("warning", "let the docstring's Args name the parameters as they are"),
    "parameter_undescribed": ("note", "describe it under Args: in the docstring"),
    "tool_misnamed": ("error", "call the tool in the prompt by its own name"),
    "tool_unknown": ("warning", "name only tools that exist, or mark the method with @tool"),
    "tool_answers_nothing": ("warning", "return something that tells the model what happened"),
    "tool_timeout": ("error", "raise the timeout of the tool, or make it faster"),
    "tool_slow": (
        "warning",
        "make it faster, or async: the other episodes wait meanwhile",
    ),
    "tool_blocks": ("error", "await asyncio.sleep, not time.sleep: an async tool must not block the others"),
    "tools_unused": ("warning", "show in solve() how the tools are needed, or leave them out"),
    # tasks
    "empty_split": (
        "error",
        "add tasks to the split, or name it in the rows: train practises, dev chooses, test reports",
    ),
    "tasks_random": ("error", "draw the fields with the `random` that is handed in, and nothing else"),
    "tasks_fail": ("error", "make every task of every split"),
    "tasks_shared": (
        "error",
        "keep each task in one split, e.g. by split_by: test must measure what was not practised",
    ),
    "tasks_repeated": ("warning", "widen what is drawn, so that test measures what was not practised"),
    "no_prompt_column": ("error", "name the request `prompt` in the rows, as TRL wants it"),
    "field_missing": ("error", "use a field that the tasks have"),
    # set-up and state
    "setup_failed": ("error", "make setup(task) work for every task; it returns the first user message"),
    "setup_random": ("error", "let setup depend on the task alone; seed by task.id"),
    "play_failed": ("error", "mend the environment's code: this is no mistake of a model"),
    "hangs": ("error", "give the tool @tool(timeout=...), or mend the loop"),
    "state_shared": ("error", "set state in setup(), as a copy of its own: episodes run at the same time"),
    "task_changed": ("error", "copy the field in setup() before changing it: all rollouts share the task"),
    "score_random": ("error", "let the same episode always earn the same"),
    "random_unseeded": ("warning", "use renshu.seeding.generator(task.id), never the module `random`"),
    "clock_read": ("warning", "keep the date in the task: the same task must be the same tomorrow"),
    # the gold solution
    "no_gold": ("note", "write solve(): it proves that the full reward can be earned"),
    "gold_random": ("error", "let solve() repeat itself; seed by task.id"),
    "gold_faults": ("error", "mend the call in solve(), or the tool"),
    "gold_fails": ("error", "mend @success or solve(): the gold solution must be a success"),
    "gold_below_full": ("error", "mend the reward or solve(): the gold solution must earn it all"),
    "gold_unscored": ("error", "let an outcome part give the gold solution a reward"),
    "gold_unpaid": ("error", "mend the reward: the answer that the task holds must earn it"),
    "gold_rationale": ("error", "compare with the text behind `####`, not with the whole solution"),
    "turns_too_few": ("error", "raise `max_turns` (or sample.turns): the gold solution needs more replies"),
    "tokens_too_few": ("error", "raise max_tokens: the gold solution needs more"),
    "hurried_fails": ("error", "mend hurried(): its demonstrations cannot be played"),
    # reward and success
    "unscored": ("error", "let reward and success give a number or None for every episode"),
    "reward_nan": ("error", "guard the division: NaN leaves the episode unscored"),
    "reward_not_a_number": ("error", "return a number from every reward, True or False from @success"),
    "reward_raises": ("error", "let the reward cope with every episode, also with an empty answer"),
    "success_raises": ("error", "let @success return True or False for every episode"),
    "reward_constant": ("error", "let the reward tell good from bad: equal rewards teach nothing"),
    "reward_inverted": ("error", "turn the sign: doing nothing must not earn more than the solution"),
    "reward_for_noise": ("error", "pay for the result: this earns as much as the solution"),
    "reward_for_nothing": ("warning", "pay nothing for an empty or thoughtless answer"),
    "reward_out_of_range": ("warning", "keep each part within 0 and 1; scale it by its weight"),
    "idle_success": ("error", "make success stricter: an empty answer must not pass"),
    "success_for_nothing": ("error", "make success stricter: this says nothing about the task"),
    "success_constant": ("error", "let success tell good from bad"),
    "success_unpaid": ("error", "let reward and success agree: a success must earn something"),
    "failure_paid": ("error", "let reward and success agree: a failure must not earn the full reward"),
    "success_below_full": ("warning", "success counts where the outcome reward is not full: is that meant?"),
    "one_answer_fits": ("warning", "let the right answer depend on the task"),
    "near_miss": ("warning", "compare exactly: a neighbouring answer passes"),
    "part_of_text": ("warning", "compare the whole answer or a word of it: digits around it still pass"),
    "case_sensitive": ("warning", "compare with .casefold(), or ask for the spelling in the prompt"),
    "space_sensitive": ("note", "compare with .strip()"),
    "early_success": ("note", "is the last call of solve() needed? success comes without it"),
    "type_mismatch": ("error", "convert one side: values of these types are never equal"),
    "not_called": ("error", "write the parentheses: a function that is not called is always true"),
    "errors_swallowed": (
        "warning",
        "let it raise, or name the error you expect: unknown is not zero",
    ),
    # what the model is told
    "format_not_asked": ("error", "ask for the format in the system prompt or the request"),
    "answer_leaked": ("error", "take the answer out of what the model reads"),
    "answer_in_prompt": ("note", "the answer stands in the prompt: fine for a choice, a leak otherwise"),
    # the model's template
    "template_refused": ("error", "choose another template, e.g. model.template: fallback"),
    "template_without_tools": (
        "error",
        "set model.template: fallback, or a template with tools: other servers would show the model none",
    ),
    "double_bos": ("error", "take the BOS token out of the template or the tokenizer"),
    "stop_untrained": ("error", "choose a template whose turns end in a stop token"),
    "pad_is_stop": (
        "note",
        "harmless here: no mask is made from padding ids",
    ),
    "system_unasked": ("note", "the template writes a system prompt of its own; set `system` to say another"),
    "thoughts_dropped": ("note", "the template drops earlier thoughts; model.thoughts says what to do"),
    "prompt_too_long": ("error", "shorten the prompt or the tools, or take a model with a longer context"),
    "prompt_long": ("warning", "little context is left for the answer: shorten the prompt or the tools"),
    # what stages learn from
    "data_refused": ("error", "mend the data, or what the stage says about it"),
    "data_read": ("note", "see whether that is as much as you expect, and why lines are left out"),
    # the dry run
    "no_signal": ("warning", "warm up first, or make the tasks easier: equal rewards teach nothing"),
    "little_signal": ("note", "see whether the first steps bring more groups that differ"),
    "truncated": ("warning", "raise sample.max_tokens, or ask for shorter answers"),
    "dry_unscored": ("warning", "mend what leaves them unscored: they are in no mean"),
    "calls_fail": ("note", "a warm-up teaches how calls are written"),
    "never_calls": ("note", "a warm-up shows the model that there are tools"),
    # the user's own cases, and the check itself
    "case_failed": ("error", "mend the environment or the case: training is refused until they agree"),
    "cut_short": ("note", "raise --seconds to play more"),
}


@dataclass(frozen=True)
class Finding:
    """One thing found. `code` is for machines; where, what and to_do are for people."""

    code: str
    severity: Severity
    where: str
    what: str
    to_do: str

    def __str__(self) -> str:
        return f"{self.severity} {self.code}: {self.where}: {self.what}; {self.to_do}"


def found(code: str, where: str, what: str, severity: Severity | None = None) -> Finding:
    """A finding with the catalogue's advice. severity: where this one weighs more or less than usual."""
    usual, to_do = ADVICE[code]
    return Finding(code, severity or usual, where, what, to_do)


def sort(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, each finding once; otherwise in the order found."""
    return sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity))


def as_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in findings]


def tally(findings: Iterable[Finding]) -> str:
    """`1 error, 2 warnings, 0 notes`."""
    counts = Counter(finding.severity for finding in findings)
    return ", ".join(f"{counts[name]} {name}{'' if counts[name] == 1 else 's'}" for name in SEVERITIES)
