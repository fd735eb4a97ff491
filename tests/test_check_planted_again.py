"""Fifteen more faults by someone who did not know the checks: each file with one of them, and without it.

The files in `planted_again` are clean; a fault is a change of one place.
"""

import shutil
from pathlib import Path

import pytest

from renshu.pipeline.check import check

PLANTED = Path(__file__).parent / "planted_again"

# fault → target, what is changed, into what, the finding that names it: code and some words
FAULTS = {
    "text compared with a number": (
        "money.py:Money",
        "f\"{task['usd']:.2f}\"",
        'task["usd"]',
        "type_mismatch",
        "the reply is text and compared with a number",
    ),
    "reply compared with a list": (
        "calendar_desk.py:Calendar",
        'in self.task["accept"]',
        '== self.task["accept"]',
        "type_mismatch",
        "field 'accept' is a list",
    ),
    "brackets never asked for": (
        "kuaidi.py:Kuaidi",
        "最后把城市写在【】里，例如【南京】。",
        "然后回答客户的问题。",
        "format_not_asked",
        "must be framed by '【' … '】'",
    ),
    "reward constant": (
        "seats.py:Seats",
        "if self.solved() else",
        "if self.solved else",
        "reward_constant",
        "all earn 1",
    ),
    "mean of nothing": (
        "thermo.py:Thermo",
        "        if not said:\n            return 0.0\n",
        "",
        "reward_nan",
        "part 'close'",
    ),
    "async tool without docstring": (
        "members.py:Members",
        '"""What a plan costs per month, in euros."""',
        "",
        "no_docstring",
        "tool fees",
    ),
    "template without tools": (
        "templated.yaml",
        "chat.jinja",
        "chat_without_tools.jinja",
        "template_without_tools",
        "it drops tools silently",
    ),
    "template without the tools' answers": (
        "templated.yaml",
        "chat.jinja",
        "chat_without_answers.jinja",
        "template_without_tools",
        "it drops the answers of tools silently",
    ),
    "fewer rewards than completions": (
        "trl_units.py",
        "if m else 0.0 for m, u in zip(matches, unit, strict=True)]",
        "for m, u in zip(matches, unit, strict=True) if m]",
        "reward_raises",
        "expected 1 got 0 rewards",
    ),
    "stock of the module sold": (
        "orders.py:OrderDesk",
        "copy.deepcopy(STOCK)",
        "STOCK",
        "state_shared",
        "global STOCK",
    ),
    "any of the choices somewhere": (
        "tickets.py:Tickets",
        '.strip(" .") == self.task["team"]',
        '.find(self.task["team"]) >= 0',
        "success_for_nothing",
        "policy 'echo' (the prompt said back)",
    ),
    "too few replies": ("depot.yaml", "turns: 2", "turns: 1", "turns_too_few", "takes 2 replies"),
    "tool that was renamed": (
        "rows.py:Rows",
        "Use count_rows to",
        "Use run_query to",
        "tool_unknown",
        "it names 'run_query'; the tools are count_rows",
    ),
    "calls cost more than success earns": (
        "buttons.py:Lights",
        'return max(0.0, 1 - trajectory.counts["calls"] / 8) if self.all_on() else 0.0',
        'return -5.0 * trajectory.counts["calls"]',
        "reward_inverted",
        "an empty answer 0.00",
    ),
    "no match, no group": (
        "invoice.py:Invoice",
        "match is not None and match.group(1)",
        "match.group(1)",
        "reward_raises",
        "'NoneType' object has no attribute 'group'",
    ),
}
SPARED = {  # what only followed from the fault, and misled
    "mean of nothing": {"reward_constant", "success_constant", "early_success"},
    "stock of the module sold": {"gold_random"},
    "no match, no group": {"near_miss", "case_sensitive"},
}


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(PLANTED, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def checked(folder, target):
    data = folder / target.replace(".py", ".jsonl") if target.startswith("trl") else None
    return check(str(folder / target), data=data, dry_run=False, samples=6).findings


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.filterwarnings("ignore")  # of numpy
def test_the_fault_is_named(name, folder):
    target, before, after, code, words = FAULTS[name]
    path = folder / target.partition(":")[0]
    text = path.read_text("utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, after), "utf-8")
    findings = checked(folder, target)
    named = [f for f in findings if f.code == code and words in f"{f.where}: {f.what}"]
    assert [f.severity for f in named if f.severity != "note"], [str(finding) for finding in findings]
    assert not {finding.code for finding in findings} & SPARED.get(name, set())


@pytest.mark.parametrize("target", sorted({fault[0] for fault in FAULTS.values()}))
def test_its_clean_twin_is_not_accused(target, folder):
    expected = {fault[3] for fault in FAULTS.values() if fault[0] == target}
    findings = checked(folder, target)
    assert [str(f) for f in findings if f.severity == "error" or f.code in expected] == []


def test_an_example_of_the_format_in_the_prompt_is_no_reward_for_nothing(folder):
    assert "reward_for_nothing" not in {f.code for f in checked(folder, "kuaidi.py:Kuaidi")}
