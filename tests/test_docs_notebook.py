"""The notebook is valid, was not run, and every command in it exists."""

import re
import shlex
from pathlib import Path

import nbformat
from typer.main import get_command

from renshu.cli.app import app

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "renshu-colab.ipynb"


def test_the_notebook_is_valid_and_clean():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) == 7
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    for cell in code:  # shell lines and magics left out, the rest is Python
        compile(re.sub(r"^\s*[!%].*$", "", cell.source, flags=re.M), str(NOTEBOOK), "exec")


def test_its_commands_exist():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    commands = get_command(app).commands
    lines = [
        shlex.split(line)
        for cell in notebook.cells
        for line in re.findall(r"^!renshu (.*)$", cell.source, re.M)
    ]
    assert [words[0] for words in lines] == ["doctor", "demo", "new", "check", "train", "compare", "chat"]
    for verb, *arguments in lines:
        commands[verb].make_context(verb, arguments)  # raises where an option or argument does not exist
