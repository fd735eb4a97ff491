"""`renshu train --processes 2`: killed, and resumed by one; a failure ends all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from renshu.train.launch import renshu
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes by /proc"),
    pytest.mark.timeout(240),
]
STAGES: list[dict[str, Any]] = [
    {
        "name": "practice",
        "grpo": {"steps": 8, "tasks_per_step": 2, "group": 2, "learning_rate": 0.02, "beta": 0.05},
        "sample": {"max_tokens": 4},
    }
]
PAUSE = """
import os, time
from pathlib import Path

class Slow(Bell):
    \"\"\"Bell, at a pace at which a test can follow.\"\"\"
    def setup(self, task):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        if os.environ.get("RANK") == os.environ.get("BROKEN", "none"):
            raise KeyError("broken")
        return super().setup(task)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    model = save_tiny_model(folder / "model", template=qwen_template())
    evaluation = {"tasks": 2, "dev_tasks": 2, "every": 9, "max_tokens": 4, "compare": []}
    write_recipe(
        folder,
        model,
        env="bell.py:Slow",
        stages=STAGES,
        eval=evaluation,
        checkpoints={"every": 1},
        parallel={"kind": "fsdp"},
    )
    with (folder / "bell.py").open("a", encoding="utf-8") as file:
        file.write(PAUSE)
    return folder


def begin(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        renshu(*arguments),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen[str], run: Path, step: int) -> None:
    """Until a checkpoint of at least this step is there."""
    while not any(int(path.name.split("-")[1]) >= step for path in run.glob("checkpoints/checkpoint-?")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def children(process: subprocess.Popen[str]) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("utf-8")
    return [int(word) for word in text.split()]


def gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return not status.is_file() or "State:\tZ" in status.read_text("utf-8")


def test_killed_and_resumed_by_another_number(folder: Path, call: Any) -> None:
    run = folder / "run-bell-3"
    first = begin(folder, "train", "bell.yaml", "--processes", "2", PAUSE="0.1")
    wait_for(first, run, 2)
    leading, other = children(first)
    os.kill(other, signal.SIGKILL)
    out, error = first.communicate(timeout=60)
    assert (first.returncode, out) == (1, "")
    assert error.count("error:") == 1
    assert "Traceback" not in error
    told, kept = error.splitlines()[-2:]
    assert told.startswith("error: process 1 of 2 was ended from outside (SIGKILL; perhaps memory ran out)")
    assert kept.startswith("kept: the run at step ")
    assert kept.endswith(f"; go on with: renshu resume {run} --processes 2")
    assert gone(leading)

    code, out, error = call("resume", run, "--json")
    assert code == 0, error
    assert "it began with processes: 2; sums may differ in their last bits" in error
    assert json.loads(out)["stages"][0]["steps"] == 8
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").open("rb")]
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_error_of_one_process_is_told_once_and_ends_all(folder: Path) -> None:
    place = folder / "broken"
    process = begin(
        folder, "train", "bell.yaml", f"out={place}", "parallel.kind=ddp", "--processes", "2", BROKEN="1"
    )
    out, error = process.communicate(timeout=100)
    assert (process.returncode, out) == (1, "")
    assert error.startswith("error: Slow cannot be trained on:\n  - setup_failed: task draw/train/0")
    assert error.count("error:") == 1
    assert error.endswith("this was process 1 of 2, numbered from 0\n")
    assert not place.exists()


def test_a_wrong_recipe_is_refused_before_there_are_processes(folder: Path, call: Any) -> None:
    recipe = folder / "bell.yaml"
    code, _, error = call("train", recipe, "engine.kind=vllm", "--processes", "2")
    assert code == 1
    assert "engine.kind: vllm is told the weights of one process, and there are 2" in error
    code, _, error = call("train", recipe, "model.adapter=qlora", "--processes", "2")
    assert (code, "parallel.kind: fsdp cannot cut weights in four bits" in error) == (1, True)


def test_a_launcher_that_says_otherwise(folder: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    code, _, error = call("train", folder / "bell.yaml", "--processes", "2")
    assert (code, "WORLD_SIZE is 4, but RANK is not set" in error) == (1, True)
    for name, value in (("RANK", "0"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    code, _, error = call("train", folder / "bell.yaml", "--processes", "2")
    assert (code, "--processes 2, but a launcher has started 4 already" in error) == (1, True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    code, _, error = call("train", folder / "bell.yaml")
    assert (code, "ACCELERATE_USE_FSDP is not used" in error) == (1, True)
