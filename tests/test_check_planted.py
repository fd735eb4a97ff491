"""Environments, rewards, recipes and templates as people write them: each with one fault, and without it.

The files in `planted` are clean; a fault is a change of one place.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from renshu.pipeline.check import check

PLANTED = Path(__file__).parent / "planted"


@dataclass(frozen=True)
class Fault:
    """What is checked, the change that plants the fault, the finding that names it: code and some words."""

    target: str
    before: str
    after: str
    code: str
    words: str


FAULTS = {
    "gold in another unit": Fault(
        "order_desk.py:OrderDesk",
        'self.task["cents"]\n        order =',
        'self.task["cents"] / 100\n        order =',
        "gold_fails",
        "solve() is no success",
    ),
    "reply compared with a list": Fault(
        "trl_sums.py", 'c[-1]["content"].strip() == a', "c == a", "type_mismatch", "compared with a list"
    ),
    "tags never asked for": Fault(
        "units.py:Units",
        " Give the result as <answer>number</answer>.",
        "",
        "format_not_asked",
        "converted: it looks for <answer>",
    ),
    "label never asked for": Fault(
        "units.py:Units",
        r"<answer>\s*(\d+)\s*</answer>",
        r"FINAL:\s*(\d+)",
        "format_not_asked",
        "converted: it looks for 'FINAL'",
    ),
    "reward constant": Fault(
        "meetings.py:Meetings", "1.0 if self.solved() else 0.0", "1.0", "reward_constant", "all earn 1"
    ),
    "success not called": Fault(
        "meetings.py:Meetings",
        "if self.solved() else",
        "if self.solved else",
        "not_called",
        "Meetings.at_the_right_hour: it asks whether self.solved is true",
    ),
    "mean of nothing": Fault(
        "research.py:Research", " if self.hits else 0.0", "", "reward_nan", "part 'relevance'"
    ),
    "tool without docstring": Fault(
        "currency.py:Exchange", '"""Product of two numbers."""', "", "no_docstring", "tool multiply"
    ),
    "template without tools": Fault(
        "templated.yaml",
        "chat.jinja",
        "chat_without_tools.jinja",
        "template_without_tools",
        "drops tools silently",
    ),
    "same questions in two splits": Fault(
        "helpdesk.py:Helpdesk", 'split_by="prompt"', 'split_by="ticket"', "tasks_shared", "only in ticket"
    ),
    "list on the class": Fault(
        "lights.py:Lights",
        "pressed: list[int]\n\n    def setup(self, task):\n        self.pressed = []",
        "pressed: list[int] = []  # noqa: RUF012\n\n    def setup(self, task):",
        "state_shared",
        "Lights.pressed",
    ),
    "colon of another width": Fault(
        "library_zh.py:Library",
        r"答案[:\uff1a]",
        "答案\uff1a",
        "format_not_asked",
        "Library.correct: it looks for '答案\uff1a', but the prompt says '答案:'",
    ),
    "one of two words": Fault(
        "refunds.py:Refunds",
        'reply.strip(" .!\\n") == wanted',
        "wanted in reply",
        "success_for_nothing",
        "echo",
    ),
    "every answer at once": Fault(
        "refunds_unasked.py:Refunds",
        'reply.strip(" .!\\n") == wanted',
        "wanted in reply",
        "success_for_nothing",
        "all possible answers at once",
    ),
    "not awaited": Fault(
        "weather.py:Weather", "await self.fetch(city)", "self.fetch(city)", "play_failed", "coroutine"
    ),
    "dice in setup": Fault(
        "parking.py:Parking",
        'dice.Random(task["plate"]).choice',
        "dice.choice",
        "setup_random",
        "setup is never the same",
    ),
    "too few tokens": Fault(
        "budgeted.yaml", "{max_tokens: 300}\neval", "{max_tokens: 30}\neval", "tokens_too_few", "allows 30"
    ),
    "rows of the task changed": Fault(
        "warehouse.py:Warehouse",
        '[dict(row) for row in task["rows"]]',
        'task["rows"]',
        "task_changed",
        "episodes change the fields",
    ),
}


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(PLANTED, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    asked = (tmp_path / "refunds.py").read_text("utf-8")
    (tmp_path / "refunds_unasked.py").write_text(asked.replace(" Answer yes or no.", ""), "utf-8")
    return tmp_path


def checked(folder, target):
    data = folder / target.replace(".py", ".jsonl") if target.startswith("trl") else None
    return check(str(folder / target), data=data, dry_run=False, samples=4).findings


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.filterwarnings("ignore")  # of numpy, and of what is never awaited
def test_the_fault_is_named(name, folder):
    fault = FAULTS[name]
    path = folder / fault.target.partition(":")[0]
    text = path.read_text("utf-8")
    assert text.count(fault.before) == 1
    path.write_text(text.replace(fault.before, fault.after), "utf-8")
    findings = checked(folder, fault.target)
    named = [f for f in findings if f.code == fault.code and fault.words in f"{f.where}: {f.what}"]
    assert [f.severity for f in named if f.severity != "note"], [str(finding) for finding in findings]


@pytest.mark.parametrize("target", sorted({fault.target for fault in FAULTS.values()}))
def test_its_clean_twin_is_not_accused(target, folder):
    expected = {fault.code for fault in FAULTS.values() if fault.target == target}
    findings = checked(folder, target)
    assert [str(f) for f in findings if f.severity == "error" or f.code in expected] == []


def test_what_comes_of_shared_state_is_not_told_beside_it(folder):
    path = folder / "lights.py"
    fault = FAULTS["list on the class"]
    path.write_text(path.read_text("utf-8").replace(fault.before, fault.after), "utf-8")
    codes = {finding.code for finding in checked(folder, fault.target)}
    assert not codes & {"gold_random", "case_sensitive", "space_sensitive", "score_random"}
