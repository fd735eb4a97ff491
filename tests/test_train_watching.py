"""The metrics file and the progress bar."""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from renshu.train import MetricsLog, ProgressBar, Snapshot


def test_records_come_back_and_unknown_numbers_are_null(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "run/metrics.jsonl")
    assert log.read() == []
    log.append({"step": 1, "loss": 0.5, "reward": math.nan, "stage": "練習"})
    log.append({"step": 2, "loss": math.inf})
    assert log.read() == [
        {"step": 1, "loss": 0.5, "reward": None, "stage": "練習"},
        {"step": 2, "loss": None},
    ]
    assert log.path.read_text("utf-8").count("\n") == 2


def test_a_line_torn_by_a_crash_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).append({"step": 1})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 2, "lo')
    log = MetricsLog(path)
    log.append({"step": 2})
    assert log.read() == [{"step": 1}, {"step": 2}]


def test_a_resumed_run_forgets_the_steps_it_repeats(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(1, 6):
        log.append({"step": step})
    log.keep(lambda record: record["step"] <= 3)
    log.append({"step": 4})
    assert [record["step"] for record in log.read()] == [1, 2, 3, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def snapshot(step: int, **metrics: float) -> Snapshot:
    return Snapshot(step, 20, metrics, (), None)


def test_without_a_terminal_ten_plain_lines_are_printed() -> None:
    output = io.StringIO()
    with ProgressBar("practice", 20, console=Console(file=output)) as bar:
        for step in range(1, 21):
            bar(snapshot(step, loss=0.12345, reward=math.nan, success=0.5))
    lines = output.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[-1] == "practice  20/20  loss 0.123  success 0.5"


def test_a_terminal_shows_count_and_time_left() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120)
    with ProgressBar("practice", 20, console=console) as bar:
        bar(snapshot(1, loss=0.25))
        bar(snapshot(7, loss=0.5))
    shown = output.getvalue()
    assert "practice" in shown
    assert "7/20" in shown
    assert "0:0" in shown
    assert "loss 0.5" in shown


def test_line_separators_and_half_characters_in_names_come_back(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    records = [{"sequences": {"a\u2028b\x85c\x0b": 1}}, {"sequences": {"\ud800": 2}}]
    for record in records:
        log.append(record)
    assert log.read() == records
    log.keep(lambda record: True)
    assert log.read() == records


def test_work_goes_on_where_nobody_reads_any_longer(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    work = (
        "import sys, pathlib; from renshu.train.progress import Terminal; terminal = Terminal()\n"
        "for _ in range(3): terminal.print('step')\n"
        "print('another library', file=sys.stderr); pathlib.Path(sys.argv[1]).write_text('done')"
    )
    ended = subprocess.run([sys.executable, "-c", work, str(tmp_path / "result")], stderr=write)
    os.close(write)
    assert (ended.returncode, (tmp_path / "result").read_text()) == (0, "done")
