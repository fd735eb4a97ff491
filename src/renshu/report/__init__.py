"""The report of a run: one offline page, and the verdict in a sentence."""

from renshu.report.build import build_report
from renshu.report.comparison import build_comparison
from renshu.report.verdict import tokens_sentence, verdict

__all__ = ["build_comparison", "build_report", "tokens_sentence", "verdict"]
