"""The guide to runs: its commands are verbs with such options, its files are there."""

import re
import shlex
from pathlib import Path

import typer.main

from renshu.cli.app import app
from renshu.pipeline import run_folder

GUIDE = (Path(__file__).parent.parent / "docs/guide-runs.md").read_text("utf-8")


def test_commands_parse():
    verbs = typer.main.get_command(app).commands
    commands = re.findall(r"^renshu (\w+) ?(.*)$", GUIDE, re.M)
    assert [verb for verb, _ in commands] == ["runs", "runs", "runs", "resume"]
    for verb, rest in commands:
        verbs[verb].make_context(verb, shlex.split(rest))  # raises for an option that is not there


def test_files_are_those_of_the_run_folder():
    files = re.findall(r"^\| `(\w[\w./]*)` \|", GUIDE, re.M)
    assert {file.split("/")[0] for file in files} == {
        line.split()[0].rstrip("/")
        for line in run_folder.__doc__.split("\n\n")[1].splitlines()
        if not line.startswith(" ")
    }
