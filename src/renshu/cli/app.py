"""`renshu`: the verbs, and how errors end.

Exit codes: 0 done; 1 refused or failed, with a sentence on standard error; 2 wrong usage; 75 another process
of the run failed, which tells why; 130 interrupted.
"""

from __future__ import annotations

import errno
import io
import os
import sys

import typer

from renshu.cli import models, reward
from renshu.cli.chat import chat
from renshu.cli.check import check
from renshu.cli.common import AGAIN
from renshu.cli.compare import compare
from renshu.cli.demo import demo
from renshu.cli.doctor import doctor
from renshu.cli.evaluate import evaluate
from renshu.cli.merge import merge
from renshu.cli.new import new
from renshu.cli.pack import pack
from renshu.cli.play import play
from renshu.cli.proxy import proxy
from renshu.cli.report import report
from renshu.cli.reproduce import reproduce
from renshu.cli.resume import resume
from renshu.cli.runs import runs
from renshu.cli.schema import schema
from renshu.cli.serve import serve
from renshu.cli.train import train
from renshu.errors import OtherProcessFailed, RenshuError

app = typer.Typer(
    help="Renshu (練習, practice): train small language-model agents and prove the gain.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo)
app.command("new")(new)
app.command("play")(play)
app.command("check")(check)
app.command("train")(train)
app.command("resume")(resume)
app.command("runs")(runs)
app.command("eval")(evaluate)
app.command("compare")(compare)
app.command("chat")(chat)
app.command("serve")(serve)
app.command("proxy")(proxy)
app.command("merge")(merge)
app.command("pack")(pack)
app.command("reproduce")(reproduce)
app.command("report")(report)
app.command("schema")(schema)
app.command("doctor")(doctor)
app.add_typer(models.app, name="models")
app.add_typer(reward.app, name="reward")


def main() -> None:
    """The console script. What a user did wrong is told in a sentence, never as a traceback."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    if sys.stdin is None:  # closed: nobody types
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    try:
        app()
    except OtherProcessFailed:
        raise SystemExit(OtherProcessFailed.exit_code) from None
    except RenshuError as error:
        _tell(f"error: {error}", error)
        raise SystemExit(1) from None
    except ImportError as error:
        _tell(f"error: a package cannot be loaded: {error}; {AGAIN}", error)
        raise SystemExit(1) from None
    except OSError as error:  # a full disk, a folder without permission
        where = f"{error.filename}: " if error.filename else ""
        hint = "; free space, or choose another place" if error.errno == errno.ENOSPC else ""
        _tell(f"error: {where}{error.strerror or error}{hint}", error)
        raise SystemExit(1) from None
    except SystemExit as ended:
        exit_by_typer = ended.__context__  # how it ends on Ctrl-C: with code 130, and without a word
        if exit_by_typer is not None and isinstance(exit_by_typer.__cause__, KeyboardInterrupt):
            _tell("interrupted", exit_by_typer.__cause__)
        raise


def _tell(text: str, error: BaseException) -> None:
    """On standard error, with what was noted on the way, such as how to go on."""
    print("\n".join([text, *getattr(error, "__notes__", ())]), file=sys.stderr)
