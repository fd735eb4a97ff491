"""Reward functions in TRL's form with their rows, among them those that a well-known tutorial prints."""

import json

import pytest

from renshu.errors import ConfigError
from renshu.pipeline.check import check

PRINTED = r"""
import re

def extract_boxed_answer(text):
    found = re.findall(r"\\boxed\{(.*?)\}", text)
    return found[-1] if found else None

# 1. Reward function — math task: 答對 = 1, 答錯 = 0
def reward_correct(completions, **kwargs):
    rewards = []
    for c in completions:
        text = c[0]["content"] if isinstance(c, list) else c
        # 用 regex 抽答案 + 對比 ground truth
        answer = extract_boxed_answer(text)
        gt = kwargs["answer"]
        rewards.append(1.0 if answer == gt else 0.0)
    return rewards

# 2. Reward function — format compliance: 必須含 <think> + <answer>
def reward_format(completions, **kwargs):
    rewards = []
    for c in completions:
        text = c[0]["content"] if isinstance(c, list) else c
        has_think = "<think>" in text and "</think>" in text
        has_answer = "<answer>" in text and "</answer>" in text
        rewards.append(0.5 if (has_think and has_answer) else 0.0)
    return rewards
"""

MENDED = r"""
import re

def extract_boxed_answer(text):
    found = re.findall(r"\\boxed\{(.*?)\}", text)
    return found[-1] if found else None

def reward_correct(completions, answer, **kwargs):
    golds = [gold.split("####")[-1].strip() for gold in answer]
    return [float(extract_boxed_answer(text) == gold) for text, gold in zip(completions, golds)]

def reward_format(completions, **kwargs):
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    return [0.5 * all(tag in text for tag in tags) for text in completions]
"""

ASK = "Think within <think></think>, then answer within <answer></answer>, the number in \\boxed{}. "
QUESTIONS = [
    (
        "Natalia sold 48 clips in April, half as many in May. How many in all?",
        "48/2 = 24\n48+24 = 72\n#### 72",
    ),
    ("Weng earns $12 an hour and babysat 50 minutes. How much did she earn?", "12/60*50 = 10\n#### 10"),
    ("Betty has half of $100. Parents give 15, grandparents 30. How much is missing?", "50-45 = 5\n#### 5"),
    (
        "Julie read 12 pages, then twice as many. Half of what is left of 120?",
        "12*2=24\n(120-36)/2=42\n#### 42",
    ),
]


def rows(folder, column="prompt", ask=""):
    path = folder / "rows.jsonl"
    lines = [json.dumps({column: ask + question, "answer": answer}) for question, answer in QUESTIONS]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def checked(folder, source, **options):
    path = folder / "rewards.py"
    path.write_text(source, encoding="utf-8")
    return check(str(path), data=rows(folder, **options))


def test_the_printed_reward_code_is_found_out_with_all_three_reasons(tmp_path):
    report = checked(tmp_path, PRINTED)
    errors = {(f.code, f.where): f.what for f in report.findings if f.severity == "error"}
    assert not report.passed
    (compared,) = [what for (code, _), what in errors.items() if code == "type_mismatch"]
    assert compared.startswith("column 'answer' is a list and compared with text (")
    assert "behind `####`" in errors[("gold_rationale", "field 'answer'")]
    tags = "it looks for <think>, <answer>, which nothing in the prompt asks for"
    assert errors[("format_not_asked", "reward_format")] == tags
    boxed = "it looks for \\boxed, which nothing in the prompt asks for"
    assert errors[("format_not_asked", "reward_correct")] == boxed
    assert ("gold_unpaid", "reward reward_correct") in errors


def test_mended_it_has_no_error(tmp_path):
    report = checked(tmp_path, MENDED, ask=ASK)
    assert [finding for finding in report.findings if finding.severity == "error"] == []


def test_rows_without_a_prompt_are_named_and_their_question_stands_in(tmp_path):
    report = checked(tmp_path, PRINTED, column="question")
    codes = [finding.code for finding in report.findings]
    assert codes.count("no_prompt_column") == 1
    assert {"type_mismatch", "gold_rationale", "format_not_asked"} <= set(codes)
    (nothing,) = checked(tmp_path, PRINTED, column="frage").findings
    assert (nothing.code, nothing.what) == ("no_prompt_column", "the columns are frage, answer")


def test_a_file_that_cannot_be_run_is_a_finding_and_one_without_rewards_an_error(tmp_path):
    (finding,) = checked(tmp_path, "import no_such_library").findings
    assert finding.code == "not_loaded"
    with pytest.raises(ConfigError, match=r"has no reward function of TRL's form"):
        checked(tmp_path, "x = 1")
