"""The guide to environments: its code runs, and it explains every problem that the check can find."""

import inspect
import re
from pathlib import Path

from renshu.envs import check_env, contract
from renshu.pipeline.environments import load_environment

DOCS = Path(__file__).parent.parent / "docs"
GUIDE = (DOCS / "guide-environments.md").read_text("utf-8")


def test_all_code_of_the_guide_runs_as_one_file(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    assert (len(blocks), GUIDE.count("```") / 2) == (9, 10)  # one is commands
    (tmp_path / "storeroom.py").write_text("\n".join(blocks), encoding="utf-8")
    for name in ("Storeroom", "Courier", "Stepwise", "Patient", "Desk"):  # loading checks what they assert
        assert check_env(load_environment(f"storeroom.py:{name}", tmp_path)) == []


def test_every_problem_is_explained():
    codes = set(re.findall(r'Problem\(\s*"(\w+)"', inspect.getsource(contract)))
    explained = {
        code for row in re.findall(r"^\| (`.+?) \|", GUIDE, re.M) for code in re.findall(r"`(\w+)`", row)
    }
    assert explained == codes


def test_links_and_files_named_in_the_pages_exist():
    for page in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]:
        text = page.read_text("utf-8")
        for link in re.findall(r"\]\(([^)#]+)", text):
            assert "://" in link or (page.parent / link).exists(), (page, link)
        for named in re.findall(r"`((?:docs|tests|examples|bench)/[\w./-]+)`", text):
            assert (DOCS.parent / named).exists(), (page, named)
