"""Checks: an environment, its template and a dry run of training, before anything is trained."""

from renshu.check.environment import Checked, check_environment
from renshu.check.findings import ADVICE, Finding

__all__ = ["ADVICE", "Checked", "Finding", "check_environment"]
