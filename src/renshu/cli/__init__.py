"""The command line: thin over the library, one file a verb. Heavy imports happen inside the verbs."""

from renshu.cli.app import main

__all__ = ["main"]
