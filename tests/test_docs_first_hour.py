"""Every command of the readme and of the first hour exists, with its options; the client is Python."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from renshu.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/guide-first-hour.md")


def commands(text: str) -> list[list[str]]:
    """The words behind `renshu` of every line of a block without a language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.M | re.S)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("renshu ")]


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist_with_their_options(page):
    found = commands((ROOT / page).read_text("utf-8"))
    assert len(found) >= 9
    verbs = get_command(app).commands
    for verb, *arguments in found:
        verbs[verb].make_context(verb, arguments)  # raises for an option or argument that does not exist


@pytest.mark.parametrize("language", ["en", "zh"])
def test_commands_of_a_new_folder_exist(language):
    page = ROOT / f"src/renshu/scaffold/{language}/README.md.template"
    found = commands(page.read_text("utf-8"))
    assert [words[0] for words in found] == ["play", "check", "train", "compare", "chat", "serve"]
    verbs = get_command(app).commands
    for verb, *arguments in found:
        verbs[verb].make_context(verb, arguments)


def test_python_of_the_first_hour_compiles():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / PAGES[1]).read_text("utf-8"), flags=re.S)
    assert len(blocks) == 2
    for block in blocks:
        compile(block, PAGES[1], "exec")


def test_commands_are_found_and_a_false_option_is_refused():
    text = "```yaml\nrenshu x\n```\nrenshu y\n```\nrenshu train a.yaml --nonsense  # comment\nother\n```\n"
    ((verb, *arguments),) = commands(text)
    assert (verb, arguments) == ("train", ["a.yaml", "--nonsense"])
    with pytest.raises(Exception, match="No such option"):
        get_command(app).commands[verb].make_context(verb, arguments)
