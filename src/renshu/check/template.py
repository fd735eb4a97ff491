"""A model's chat template, against what the environment needs of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from renshu.chat import ChatFormat
from renshu.chat.jinja import JinjaTemplate
from renshu.check.findings import Finding, found
from renshu.check.plays import gold
from renshu.envs.environment import Environment
from renshu.envs.interaction import Interaction, play_through
from renshu.errors import TemplateError
from renshu.types import Message, Row, Task

ROOMY = 0.75  # share of the context that a prompt may take before it is called long


@dataclass(frozen=True)
class Dialogue:
    """The gold solution of one task as the model would read and write it."""

    task: Task
    messages: Sequence[Message]
    tools: Sequence[dict[str, object]]
    rows: Sequence[Row]

    @property
    def trained(self) -> int:
        """Tokens that the model would have sampled in the episode."""
        return sum(sum(row.trained) for row in self.rows)


def gold_dialogues(environment: type[Environment], chat: ChatFormat, tasks: Sequence[Task]) -> list[Dialogue]:
    """The gold solutions of the tasks, none where there is no `solve()`. Raises what playing them raises."""
    if not environment.has_script("solve"):
        return []
    dialogues = []
    for task in tasks:
        fresh = environment()
        messages = play_through(fresh, task, gold(fresh)).messages
        tools = [spec.schema for spec in fresh.tools()]
        dialogues.append(Dialogue(task, messages, tools, chat.supervised_rows(messages, tools)))
    return dialogues


def check_template(environment: type[Environment], chat: ChatFormat, *, asked: bool) -> Iterator[Finding]:
    """What the template does with tools, thoughts and its own words. asked: Renshu's own template was asked
    for.
    """
    behaviour = chat.behaviour
    tools = [spec.name for spec in environment().tools()]
    if tools and behaviour.tools == "prompt" and not asked:
        what = f"it {_left_out(chat.template)}; Renshu describes the tools in the system prompt instead"
        yield found("template_without_tools", "the chat template", what)
    if behaviour.default_system and not environment.system:
        yield found("system_unasked", "the chat template", f"it writes {behaviour.default_system!r:.60}")
    if behaviour.drops_thoughts and chat.thoughts == "append":
        yield found("thoughts_dropped", "the chat template", "Renshu keeps them (model.thoughts: append)")
    pad = getattr(chat.tokenizer, "pad_token_id", None)
    if pad is not None and pad in chat.stop_ids:
        yield found("pad_is_stop", "the tokenizer", "the padding token is a token that ends turns")


def _left_out(template: JinjaTemplate) -> str:
    """What the template does to a dialogue with a call so that it cannot be used for tools."""
    function = {"name": "zq_tool", "description": "zq", "parameters": {"type": "object", "properties": {}}}
    call = {"type": "function", "id": "zqcall001", "function": {"name": "zq_called", "arguments": {}}}
    answer = {"role": "tool", "content": "zq-result", "name": "zq_called", "tool_call_id": "zqcall001"}
    dialogue: list[dict[str, Any]] = [
        {"role": "user", "content": "zq"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        answer,
    ]
    try:
        text = template.render(dialogue, [{"type": "function", "function": function}], prompt=True)
    except TemplateError:
        return "cannot render a call of a tool and its answer"
    lost = {"zq_tool": "tools", "zq_called": "the calls of tools", "zq-result": "the answers of tools"}
    dropped = [what for mark, what in lost.items() if mark not in text]
    return f"drops {dropped[0]} silently" if dropped else "writes calls in a form that cannot be read back"


def check_prompts(
    environment: type[Environment], chat: ChatFormat, context: int, tasks: Sequence[Task]
) -> Iterator[Finding]:
    """The prompts of the tasks fit, and begin once."""
    lengths = {}
    for task in tasks:
        opening = Interaction(environment(), task)
        ids = chat.prompt(opening.messages, opening.schemas)
        lengths[task.id] = len(ids)
        bos = chat.tokenizer.bos_token_id
        if bos is not None and list(ids[:2]) == [bos, bos]:
            yield found("double_bos", f"task {task.id}", "the prompt begins with two BOS tokens")
    if not lengths:
        return
    longest = max(lengths, key=lambda name: lengths[name])
    what = f"the prompt has {lengths[longest]} tokens, the model's context {context}"
    if lengths[longest] >= context:
        yield found("prompt_too_long", f"task {longest}", what)
    elif lengths[longest] > ROOMY * context:
        yield found("prompt_long", f"task {longest}", what)


def check_dialogues(
    dialogues: Sequence[Dialogue], chat: ChatFormat, limits: dict[str, int]
) -> Iterator[Finding]:
    """The gold solution fits the budgets of sampled tokens, and its every turn ends in a trained stop token.

    limits: keys of the recipe, such as `eval.max_tokens` → tokens.
    """
    if not dialogues:
        return
    longest = max(dialogues, key=lambda dialogue: dialogue.trained)
    for key, limit in limits.items():
        if longest.trained > limit:
            what = f"the gold solution takes {longest.trained} sampled tokens, {key} allows {limit}"
            yield found("tokens_too_few", f"task {longest.task.id}", what)
    for dialogue in dialogues:
        if not all(_stops(row, chat) for row in dialogue.rows):
            yield found(
                "stop_untrained", f"task {dialogue.task.id}", "a turn of the agent ends in no stop token"
            )
            return


def _stops(row: Row, chat: ChatFormat) -> bool:
    """Whether each run of trained tokens ends in a token that ends a turn."""
    ends = [
        index
        for index, trained in enumerate(row.trained)
        if trained and (index + 1 == len(row.trained) or not row.trained[index + 1])
    ]
    return bool(ends) and all(row.ids[index] in chat.stop_ids for index in ends)
