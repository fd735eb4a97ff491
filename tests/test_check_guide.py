"""The guide to checks has every finding with its severity and advice, and its example cases are cases."""

import re
from pathlib import Path

from renshu.check import ADVICE
from renshu.check.cases import read_cases
from renshu.check.environment import PREVENTING
from renshu.pipeline.check import UNPLAYABLE

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs/guide-checks.md").read_text("utf-8")


def test_every_finding_is_in_the_table_as_it_is():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", GUIDE, re.M)
    assert rows == [(code, severity, to_do) for code, (severity, to_do) in ADVICE.items()]


def test_every_code_that_the_checks_use_is_in_the_catalogue_and_the_other_way_round():
    files = [*(ROOT / "src/renshu/check").glob("*.py"), ROOT / "src/renshu/pipeline/check.py"]
    files.append(ROOT / "src/renshu/envs/contract.py")
    sources = "".join(path.read_text("utf-8") for path in files if path.name != "findings.py")
    assert {code for code in ADVICE if f'"{code}"' not in sources} == set()
    assert set(re.findall(r'found\(\s*"(\w+)"', sources)) <= set(ADVICE)
    assert set(re.findall(r'Problem\(\s*"(\w+)"', sources)) <= set(ADVICE)
    assert set(ADVICE) >= UNPLAYABLE
    assert set(ADVICE) >= PREVENTING


def test_the_example_cases_are_cases(tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.S)
    (tmp_path / "cases.yaml").write_text(example, encoding="utf-8")
    right, guess = read_cases(tmp_path / "cases.yaml")
    assert (right.moves[0].call, right.moves[1].say, right.success) == ("look_up", "101", False)
    assert (guess.task, guess.bounds) == ({"name": "Ann", "room": 101}, (0.0, 0.0))
