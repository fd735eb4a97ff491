"""The folders form an explicit, acyclic order; packages export what they say."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import renshu

SOURCE = Path(renshu.__file__).parent
ORDER = (
    *[
        "errors",
        "places",
        "types",
        "seeding",
        "jsonl",
        "config",
        "chat",
        "tree",
        "tools",
        "models",
        "engines",
        "rewards",
        "envs",
        "algorithms",
    ],
    *[
        "rollout",
        "train",
        "evaluation",
        "data",
        "check",
        "report",
        "pipeline",
        "handover",
        "serve",
        "proxy",
        "cli",
    ],
)
FORBIDDEN = {"train": {"envs", "engines", "rollout"}}  # the pipeline hands these to the loop
DATA_ONLY = {"recipes"}


def imported_folders(path: Path) -> set[str]:
    """Top-level folders of renshu that the file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            modules = [node.module or ""]
            if node.module == "renshu":
                modules = [f"renshu.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in modules if name.startswith("renshu.")}
    return found


def violations(folder: str, imported: set[str]) -> set[str]:
    allowed = set(ORDER[: ORDER.index(folder) + 1]) - FORBIDDEN.get(folder, set())
    return imported - allowed


def test_folders_import_only_from_those_before_them():
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        folder = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if folder == "__init__":
            continue  # exports lazily, checked below
        assert folder in ORDER or folder in DATA_ONLY, f"{folder} has no place in the order"
        wrong += [
            f"{path.relative_to(SOURCE)} imports {name}"
            for name in violations(folder, imported_folders(path))
        ]
    assert wrong == []


def test_the_check_sees_a_violation(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("def late():\n    from renshu.envs import Environment\n    from renshu import tree\n")
    assert imported_folders(bad) == {"envs", "tree"}
    assert violations("train", imported_folders(bad)) == {"envs"}
    assert violations("chat", imported_folders(bad)) == {"envs", "tree"}


def test_architecture_page_has_the_same_order():
    page = (Path(__file__).parent.parent / "docs/architecture.md").read_text("utf-8")
    section = page.split("## Folder order")[1].split("\n\n")[1]
    named = [word for quoted in section.split("`")[1::2] for word in quoted.split()]
    assert tuple(named) == ORDER


def test_architecture_page_names_what_the_code_names():
    root = Path(__file__).parent.parent
    page = (root / "docs/architecture.md").read_text("utf-8")
    files = [*SOURCE.rglob("*"), *(root / "tests").glob("*"), *(root / "docs").glob("*")]
    known = " ".join([*(path.read_text("utf-8") for path in SOURCE.rglob("*.py")), *map(str, files)])
    words = set(re.findall(r"\w+", known))
    named = {
        word for quoted in re.findall(r"`([^`\n]+)`", page) for word in re.findall(r"[A-Za-z_]{4,}", quoted)
    }
    assert named - words == set()


PACKAGES = ["renshu", *(f"renshu.{m.name}" for m in pkgutil.iter_modules([str(SOURCE)]) if m.ispkg)]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_exported_name_exists(name):
    package = importlib.import_module(name)
    for exported in getattr(package, "__all__", ()):
        assert getattr(package, exported) is not None


def test_few_public_names():
    assert 10 <= len(renshu.__all__) <= 44
    assert len(set(renshu.__all__)) == len(renshu.__all__)
    assert set(renshu.__all__) <= set(dir(renshu))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        renshu.nonsense  # noqa: B018


def test_importing_renshu_or_its_command_line_imports_nothing_heavy():
    code = (
        "import sys, renshu, renshu.cli; "
        "print([m for m in ('torch', 'transformers', 'peft', 'numpy', 'scipy') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_no_public_name_is_shadowed_by_a_folder():
    folders = {module.name for module in pkgutil.iter_modules([str(SOURCE)])}
    assert folders & set(renshu.__all__) == set()


def test_public_names_explain_themselves():
    for name in renshu.__all__:
        text = getattr(renshu, name).__doc__ or ""
        assert len(text.split()) >= 4, name
        assert not text.startswith(f"{name}("), f"{name} has only the docstring that dataclasses make"
