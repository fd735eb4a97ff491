"""The demo's live view: the curves of practice, drawn while it goes on."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from renshu.cli.curve import curve
from renshu.cli.show import TerminalWatcher
from renshu.pipeline.recipe import Stage
from renshu.train import Snapshot

SHOWN = {"reward": "cyan", "success": "green"}
HEIGHT = 5


class DemoWatcher(TerminalWatcher):
    """A bar for the warm-up, curves for practice; plain lines where there is no terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.values: dict[str, list[float]] = {}
        self.live: Live | None = None

    def stage_begins(self, stage: Stage, steps: int) -> None:
        if not stage.samples or not self.console.is_terminal:
            super().stage_begins(stage, steps)
            return
        self.values = {name: [] for name in SHOWN}
        self.live = Live(console=self.console, auto_refresh=False)
        self.live.start()

    def stage_step(self, stage: Stage, snapshot: Snapshot, dev_success: float | None) -> None:
        if self.live is None:
            super().stage_step(stage, snapshot, dev_success)
            return
        for name, values in self.values.items():
            if snapshot.metrics.get(name) is not None:
                values.append(snapshot.metrics[name])
        for finding in snapshot.findings:
            self.noted(finding.text)  # printed above the live picture
        self.live.update(self.picture(stage, snapshot), refresh=True)

    def stage_ends(self, stage: Stage, reason: str | None) -> None:
        if self.live is None:
            super().stage_ends(stage, reason)
            return
        self.live.stop()
        self.live = None

    def broken_off(self) -> None:
        super().broken_off()
        if self.live is not None:
            self.live.stop()

    def picture(self, stage: Stage, snapshot: Snapshot) -> Panel:
        """The curves so far, all on one scale."""
        width = max(20, self.console.width - 24)
        top = max([1.0, *(value for values in self.values.values() for value in values)])
        blocks = []
        for name, values in self.values.items():
            drawn = curve(values, width=width, height=HEIGHT, top=top)
            drawn[-1] += f"  {name} {values[-1]:.2f}" if values else ""
            blocks.append(Text("\n".join(drawn), style=SHOWN[name]))
        return Panel(Group(*blocks), title=f"{stage.name}: step {snapshot.step} of {snapshot.steps}")
