"""A run that is broken off and resumed equals one that nothing happened to, bit for bit."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pkgutil
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from renshu.errors import CheckpointError, ConfigError
from renshu.models import ModelSettings
from renshu.pipeline.agent import build_agent
from renshu.pipeline.interrupt import Interrupt
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.resume import resume_run
from renshu.pipeline.run_folder import RunFolder
from renshu.pipeline.train import train_recipe
from renshu.pipeline.watch import Watcher
from renshu.train import checkpoint
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe

# A KL to the weights after the warm-up, and AdamW moments: all that a resumed stage must find again.
STAGES: list[dict[str, Any]] = [
    {"name": "warm-up", "sft": {"demonstrations": 16, "careful": 0.5, "epochs": 5, "learning_rate": 0.1}},
    {
        "name": "practice",
        "grpo": {"steps": 6, "tasks_per_step": 2, "group": 4, "learning_rate": 0.02, "beta": 0.05},
        "sample": {"max_tokens": 6},
        "stop_when": {"patience": 9},
    },
]
SETTINGS: dict[str, Any] = {
    "stages": STAGES,
    "eval": {"tasks": 6, "dev_tasks": 3, "every": 2, "max_tokens": 6, "compare": ["base", "few-shot"]},
    "checkpoints": {"every": 2},
}
TIMES = ("seconds", "seconds_source", "seconds_train")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"), template=qwen_template())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("undisturbed")
    return train(write_recipe(folder, model, **SETTINGS))


def train(recipe: Path, watcher: Watcher | None = None) -> Path:
    return train_recipe(read_recipe(str(recipe)), name="bell", base=recipe.parent, watcher=watcher)


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def contents(run: Path) -> dict[str, Any]:
    """All that a run says and keeps, times and places apart."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.suffix == ".jsonl":
            found[name] = [without_times(json.loads(line)) for line in path.open("rb")]
        elif name == "summary.json":
            found[name] = without_times(json.loads(path.read_text("utf-8")))
        elif path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        elif path.is_file() and name not in ("recipe.resolved.yaml", "provenance.json", "report.html"):
            found[name] = None
    return found


def same(run: Path, other: Path) -> None:
    one, two = contents(run), contents(other)
    assert list(one) == list(two)
    assert [name for name in one if one[name] != two[name]] == []


class Fails(Watcher):
    """Breaks the run off at a step, or while an arm is measured."""

    def __init__(self, error: BaseException, stage: str = "", step: int = 0, arm: str = "") -> None:
        self.error, self.place, self.arm = error, (stage, step), arm

    def stage_step(self, stage, snapshot, dev_success):
        if (stage.name, snapshot.step) == self.place:
            raise self.error

    def evaluating(self, arm, done, tasks):
        if arm == self.arm:
            raise self.error


class Notes(Watcher):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def noted(self, text: str) -> None:
        self.notes.append(text)


def broken_at(folder: Path, model: Path, **place: Any) -> Path:
    recipe = write_recipe(folder, model, **SETTINGS)
    with pytest.raises(RuntimeError, match="power cut") as caught:
        train(recipe, Fails(RuntimeError("power cut"), **place))
    run = folder / "run-bell-3"
    assert f"renshu resume {run}" in caught.value.__notes__[0]
    return run


@pytest.mark.parametrize(
    ("place", "stands"),
    [
        ({"arm": "base"}, "before its first step"),
        ({"stage": "warm-up", "step": 3}, "at step 2 of warm-up"),
        ({"arm": "warm-up"}, "after warm-up"),
        ({"stage": "practice", "step": 1}, "after warm-up"),
        ({"stage": "practice", "step": 5}, "at step 4 of practice"),
        ({"arm": "practice"}, "after practice"),
    ],
)
def test_a_resumed_run_equals_an_undisturbed_one(undisturbed, tmp_path, model, place, stands):
    run = broken_at(tmp_path, model, **place)
    assert json.loads((run / "failure.json").read_text()) == {"error": "RuntimeError: power cut"}
    watcher = Notes()
    torch.manual_seed(len(stands))  # whatever the process did before does not matter
    torch.set_num_threads(2)
    resume_run(run, watcher=watcher)
    assert torch.get_num_threads() == 1  # as the run began
    assert watcher.notes == [f"{run} goes on {stands}"]
    same(undisturbed, run)


def killed_at(folder: Path, model: Path, patched: str, call: int) -> Path:
    """A run whose process is killed just before it calls a function for the `call`-th time."""
    recipe = write_recipe(folder, model, **SETTINGS)
    child = os.fork()
    if child == 0:
        owner, _, name = patched.rpartition(".")
        place = pkgutil.resolve_name(owner)
        original, calls = getattr(place, name), itertools.count(1)

        def deadly(*args: Any, **keywords: Any) -> Any:
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **keywords)

        setattr(place, name, deadly)
        try:
            train(recipe)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return folder / "run-bell-3"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("patched", "call", "left", "stands"),
    [
        ("renshu.pipeline.practice.collect_rounds", 3, [], "at step 2 of practice"),  # about to sample step 3
        ("torch.nn.utils.clip_grad_norm_", 9, [], "at step 2 of practice"),  # after the backward of step 4
        ("renshu.train.checkpoint.save_file", 20, ["checkpoint-11.tmp"], "at step 4 of practice"),
        # between taking away the earlier folder and putting the new one in its place
        ("os.rename", 12, ["checkpoint-5.old", "checkpoint-5.tmp"], "after warm-up"),
    ],
)
def test_a_killed_run_is_resumed_bit_for_bit(undisturbed, tmp_path, model, patched, call, left, stands):
    run = killed_at(tmp_path, model, patched, call)
    places = (run / "checkpoints").iterdir()
    assert sorted(place.name for place in places if place.suffix in (".tmp", ".old")) == left
    watcher = Notes()
    resume_run(run, watcher=watcher)
    assert watcher.notes == [f"{run} goes on {stands}"]
    same(undisturbed, run)


class Interrupts(Watcher):
    """Presses Ctrl-C at the third step of practice."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def stage_step(self, stage, snapshot, dev_success):
        if (stage.name, snapshot.step) == ("practice", 3):
            os.kill(os.getpid(), signal.SIGINT)

    def noted(self, text):
        self.notes.append(text)


def test_ctrl_c_finishes_the_step_and_saves(undisturbed, tmp_path, model):
    recipe = write_recipe(tmp_path, model, **SETTINGS)
    watcher = Interrupts()
    with pytest.raises(KeyboardInterrupt) as caught:
        train(recipe, watcher)
    run = tmp_path / "run-bell-3"
    kept = f"kept: the run at step 3 of practice; go on with: renshu resume {run}"
    assert caught.value.__notes__ == [kept]
    assert watcher.notes == ["the run ends after this step; Ctrl-C again ends it at once"]
    assert not (run / "failure.json").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resume_run(run)
    same(undisturbed, run)


def test_a_second_ctrl_c_does_not_wait():
    told = []
    with Interrupt(lambda: told.append(1)) as interrupt:
        interrupt.check()
        signal.raise_signal(signal.SIGINT)
        assert (interrupt.asked, told) == (True, [1])
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_several_processes_end_at_the_same_point():
    asked = [False, True]  # by the other process, at two looks
    with Interrupt(lambda: None, lambda own: own or asked.pop(0)) as interrupt:
        interrupt.check()
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_a_handler_of_the_program_stays():
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with Interrupt(lambda: None) as interrupt:
            signal.raise_signal(signal.SIGINT)
        assert (heard, interrupt.asked) == ([signal.SIGINT], False)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def broken(tmp_path_factory, model):
    """A run that was broken off at the third step of its warm-up; to be copied, not resumed."""
    return broken_at(tmp_path_factory.mktemp("broken"), model, stage="warm-up", step=3)


@pytest.fixture
def copy(broken, tmp_path):
    folder = Path(shutil.copytree(broken.parent, tmp_path / "copy"))
    run = RunFolder(folder / broken.name)
    run.write_json("provenance.json", {**run.read_json("provenance.json"), "base": str(folder)})
    return run.path


def test_h01_an_incomplete_checkpoint_is_passed_over_and_named(undisturbed, copy):
    shutil.copytree(copy / "checkpoints/checkpoint-2", copy / "checkpoints/checkpoint-200")
    (copy / "checkpoints/checkpoint-200/optimiser.safetensors").unlink()
    watcher = Notes()
    resume_run(copy, watcher=watcher)
    assert watcher.notes == [
        "going back to checkpoint-2; checkpoint 200 is incomplete",
        f"{copy} goes on at step 2 of warm-up",
    ]
    same(undisturbed, copy)


def test_h02_a_full_disk_ends_a_run_that_can_be_resumed(undisturbed, tmp_path, model, monkeypatch):
    written = itertools.count(1)

    def full_at_last(tensors: Any, path: Path) -> None:
        if next(written) > 12:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        save_file(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full_at_last)
        with pytest.raises(CheckpointError, match="cannot be written: .*No space left") as caught:
            train(write_recipe(tmp_path, model, **SETTINGS))
    run = tmp_path / "run-bell-3"
    assert caught.value.__notes__ == [f"kept: the run after warm-up; go on with: renshu resume {run}"]
    resume_run(run)
    same(undisturbed, run)


def test_h02_too_small_a_disk_is_said_before_there_is_a_run(tmp_path, model, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 100))  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match="3 checkpoints need about 0 MiB, but 0 are free"):
        train(write_recipe(tmp_path, model, **SETTINGS))
    assert not (tmp_path / "run-bell-3").exists()


def test_h07_another_base_model_is_refused_and_can_be_forced(copy, tmp_path, model):
    other = load_file(model / "model.safetensors")
    other["model.norm.weight"] = other["model.norm.weight"] * 2
    changed = shutil.copytree(model, tmp_path / "other")
    save_file(other, changed / "model.safetensors", metadata={"format": "pt"})
    resolved = copy / "recipe.resolved.yaml"
    resolved.write_text(resolved.read_text().replace(str(model), str(changed)))
    with pytest.raises(ConfigError, match=r"settings: \w+, now \w+; model: .*; weights: \w+, now \w+"):
        resume_run(copy)


def test_h08_template_and_ids_of_the_kept_model_are_those_it_was_trained_with(undisturbed):
    kept = build_agent(ModelSettings(name=str(undisturbed / "checkpoints/final")))
    trained_with = json.loads((undisturbed / "provenance.json").read_text("utf-8"))["template"]
    assert kept.chat.fingerprint == trained_with


def test_a_changed_environment_is_refused_and_can_be_forced(copy):
    source = copy.parent / "bell.py"
    source.write_text(source.read_text().replace('"ding"', '"dong"') + "\nimport chime\n")
    (copy.parent / "chime.py").write_text("")
    changed = r"\(source bell.py: \w{12}, now \w{12}; source chime.py: none, now e3b0c44298fc\)"
    with pytest.raises(ConfigError, match=f"something has changed .*{changed}"):
        resume_run(copy)
    resume_run(copy, force=True)
    (finding,) = [json.loads(line) for line in (copy / "findings.jsonl").open()]
    assert finding["text"].startswith("resumed at step 2 of warm-up although something had changed: sou")
    assert (copy / "summary.json").is_file()


def test_what_cannot_be_resumed_is_refused_in_a_sentence(undisturbed, copy, tmp_path):
    with pytest.raises(ConfigError, match="is complete: there is nothing to resume"):
        resume_run(undisturbed)
    with pytest.raises(ConfigError, match="holds no run"):
        resume_run(tmp_path)
    holder = RunFolder.reopen(copy)
    with pytest.raises(ConfigError, match="is being written by another run"):
        resume_run(copy)
    holder.close()
    state = copy / "checkpoints/checkpoint-2/state.json"
    state.write_text(state.read_text().replace('"kept"', '"cept"'))
    with pytest.raises(CheckpointError, match=r"state.json has no kept: it is of another version"):
        resume_run(copy)
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(ConfigError, match="has no checkpoint to go on from: train again with --overwrite"):
        resume_run(copy)


def test_an_adapter_and_its_reference_are_resumed(tmp_path, model):
    """In the first stage the KL is to the model with its adapter switched off."""
    settings = {
        **SETTINGS,
        "stages": [{**STAGES[1], "grpo": {**STAGES[1]["grpo"], "entropy_bonus": 0.1}}],
        "model": {"name": str(model), "adapter": {"rank": 2}},
        "eval": {"tasks": 2, "dev_tasks": 2, "every": 2, "max_tokens": 6},
    }
    runs = []
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
        recipe = write_recipe(tmp_path / name, model, **settings)
        watcher = Fails(RuntimeError("power cut"), "practice", 5) if name == "broken" else None
        with pytest.raises(RuntimeError) if watcher else contextlib.nullcontext():
            train(recipe, watcher)
        runs.append(tmp_path / name / "run-bell-3")
    resume_run(runs[1])
    same(*runs)
    assert json.loads((runs[0] / "metrics.jsonl").read_text().splitlines()[5])["kl"] > 0
