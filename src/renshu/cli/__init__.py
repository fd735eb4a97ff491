"""The command line: thin over the library, one file a verb. Heavy imports happen inside the verbs."""

from renshu.cli.main import main

__all__ = ["main"]
