"""Two processes train as one does: DDP and FSDP2, five steps, from one number of processes to another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from renshu.errors import TrainingError
from renshu.train.launch import OURS, launch
from renshu.train.processes import ALONE, dealt, in_order
from renshu.tree.packing import deal
from renshu.types import Row

WORKER = Path(__file__).parent / "distributed_worker.py"
LIMIT = 1e-5


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("distributed")
    assert launch([sys.executable, "-W", "ignore", str(WORKER), str(folder)], 2) == 0
    result: dict[str, Any] = json.loads((folder / "found.json").read_text("utf-8"))
    return result


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["Replicated", "Sharded"])
@pytest.mark.parametrize("algorithm", ["sft", "grpo", "ppo"])
def test_two_processes_equal_one_after_five_steps(found: dict[str, Any], kind: str, algorithm: str) -> None:
    case = found[f"{kind} {algorithm}"]
    assert case["sharded"] is (kind == "Sharded")  # DTensors, all of them
    assert case["moved"] > 0.01
    assert case["together"] < LIMIT
    assert case["again"] < LIMIT  # saved by two at step 3, by one at step 4, ended by two
    assert max(case["metrics"].values()) < LIMIT
    alone, (first, second) = case["passes"]
    assert first == second < alone  # the work is divided, and whoever has less keeps pace


@pytest.mark.timeout(240)
def test_processes_sample_divide_and_fail_together(found: dict[str, Any]) -> None:
    assert found["samples"] == [True, True]
    assert found["divided"] == [["a", 0], ["b", 1], ["c", 0], ["a", 0], ["b", 1]]
    assert found["failing"] == ["process 1: ZeroDivisionError: integer division or modulo by zero", "own"]
    assert found["led"] == [0, 3, True]


def test_one_that_is_alone_does_everything() -> None:
    assert ALONE.divided("abc", lambda own: [letter.upper() for letter in own]) == ["A", "B", "C"]
    assert ALONE.led(lambda: 7) == 7
    assert ALONE.total(0.1) == 0.1
    assert (ALONE.any(True), ALONE.any(False)) == (True, False)
    error = ValueError()
    assert ALONE.cause(error) is error


def test_shares_keep_equal_keys_together_and_come_back_in_order() -> None:
    shares = dealt(["a", "b", "a", "c", "d"], 3)
    assert shares == [[0, 2, 4], [1], [3]]
    assert in_order(shares, ["XYZ", "P", "Q"]) == ["X", "P", "Y", "Q", "Z"]
    assert dealt([], 2) == [[], []]


def test_groups_go_whole_to_whoever_has_least_to_do() -> None:
    def row(length: int, group: str | None = None) -> Row:
        return Row(tuple(range(length)), (False,) + (True,) * (length - 1), group=group)

    rows = [row(3, "a"), row(9, "b"), row(5, "c"), row(9, "b"), row(4)]
    # Distinct tokens: b 9, c 5, the row without a group 4, a 3.
    assert deal(rows, 2, 100) == [[[0, 1, 3]], [[2, 4]]]
    assert deal(rows, 2, 100, "padded") == [[[1, 3]], [[0, 2, 4]]]
    assert deal(rows, 1, 100) == [[[0, 1, 3, 2, 4]]]  # as packed
    assert deal(rows[:1], 3, 100) == [[[0]], [], []]


def command(code: str) -> list[str]:
    return [sys.executable, "-c", f"import os, sys, time\nrank = int(os.environ['RANK'])\n{code}"]


def test_the_launcher_tells_processes_of_each_other(tmp_path: Path) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", OURS)
    code = f"""
open(r"{tmp_path}/" + str(rank), "w").write(" ".join(os.environ[name] for name in {names}))
"""
    assert launch(command(code), 3) == 0
    said = sorted(path.read_text("utf-8") for path in tmp_path.iterdir())
    assert said == [f"{rank} {rank} 3 127.0.0.1 1" for rank in range(3)]


def test_the_launcher_ends_all_with_the_code_of_the_one_that_failed() -> None:
    assert launch(command("sys.exit((75, 3)[rank])"), 2) == 3


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_killed_process_ends_all_with_one_sentence() -> None:
    code = "os.kill(os.getpid(), 9) if rank == 1 else time.sleep(60)"
    with pytest.raises(
        TrainingError, match=r"process 1 of 2 was ended from outside \(SIGKILL; perhaps memory ran out\)"
    ):
        launch(command(code), 2)


def test_processes_that_only_lost_each_other_are_told_of() -> None:
    with pytest.raises(TrainingError, match="the 2 processes lost the connection to each other"):
        launch(command("sys.exit(75)"), 2)


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_goes_to_the_first_process(tmp_path: Path) -> None:
    """The launcher runs in a process of its own, which is told."""
    inner = (
        "import os, sys, time\\n"
        "rank = os.environ['RANK']\\n"
        "try: print(rank, flush=True), time.sleep(60 if rank == '0' else 1)\\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    outer = (
        "import sys; from renshu.train.launch import launch\n"
        f"sys.exit(launch([sys.executable, '-c', \"{inner}\"], 2))"
    )
    process = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"0\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
