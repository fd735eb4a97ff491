"""When a stage ends before its last step."""

from __future__ import annotations

from renshu.pipeline.recipe import StopWhen


class Looks:
    """The looks of one stage at the dev split, and whether they say that it should end."""

    def __init__(self, stop_when: StopWhen | None) -> None:
        self.stop_when = stop_when
        self.best = -1.0
        self.without_rise = 0

    def verdict(self, success: float | None) -> str | None:
        """Why the stage should end now, or None."""
        if self.stop_when is None or success is None:
            return None
        self.without_rise = 0 if success > self.best else self.without_rise + 1
        self.best = max(self.best, success)
        wanted, patience = self.stop_when.success, self.stop_when.patience
        if wanted is not None and success >= wanted:
            return f"success on dev is {success:.0%}, {wanted:.0%} was asked for"
        if patience is not None and self.without_rise >= patience:
            return f"success on dev has not risen in {patience} looks"
        return None
