"""Checkpoints: complete or not there, newest by number, exact after loading."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from renshu.algorithms import OptimiserConfig
from renshu.errors import CheckpointError, TrainingError
from renshu.train import checkpoint, optimiser
from renshu.train.optimiser import trainable


def model(width: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.LayerNorm(width))


def trained(steps: int = 2) -> tuple[nn.Module, torch.optim.AdamW]:
    network = model()
    adam = optimiser.build(trainable(network), OptimiserConfig(weight_decay=0.1))
    for _ in range(steps):
        network(torch.ones(4, 2)).square().sum().backward()
        adam.step()
    return network, adam


def test_what_is_loaded_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    network, adam = trained()
    path = checkpoint.save(tmp_path, 2, trainable(network), adam, {"success": 0.5})
    copy = model()
    copy_adam = optimiser.build(trainable(copy), OptimiserConfig(weight_decay=0.1))
    assert checkpoint.load(path, trainable(copy), copy_adam) == {"step": 2, "success": 0.5}
    for one, other in ((network, adam), (copy, copy_adam)):
        one.zero_grad()
        one(torch.tensor([[1.0, -2.0]])).abs().sum().backward()
        other.step()
    for one, other in zip(network.parameters(), copy.parameters(), strict=True):
        assert torch.equal(one, other)


def test_only_trainable_parameters_are_written(tmp_path: Path) -> None:
    network = model()
    network[0].requires_grad_(False)  # type: ignore[index]
    path = checkpoint.save(
        tmp_path, 0, trainable(network), optimiser.build(trainable(network), OptimiserConfig()), {}
    )
    sizes = json.loads((path / "complete.json").read_text())
    assert sorted(sizes) == ["optimiser.safetensors", "state.json", "trainable.safetensors"]
    from safetensors.torch import load_file

    assert sorted(load_file(path / "trainable.safetensors")) == ["1.bias", "1.weight"]


def test_h01_an_incomplete_newer_checkpoint_is_passed_over_and_named(tmp_path: Path) -> None:
    network, adam = trained()
    checkpoint.save(tmp_path, 100, trainable(network), adam, {})
    (tmp_path / "checkpoint-200").mkdir()
    shutil.copy(tmp_path / "checkpoint-100/trainable.safetensors", tmp_path / "checkpoint-200")
    found = checkpoint.latest(tmp_path)
    assert found.path == tmp_path / "checkpoint-100"
    assert found.skipped == ("200 is incomplete",)
    with pytest.raises(CheckpointError, match="checkpoint-200 is incomplete"):
        checkpoint.load(tmp_path / "checkpoint-200", trainable(network))


@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_a_damaged_file_makes_a_checkpoint_incomplete(tmp_path: Path, damage: str) -> None:
    network, adam = trained()
    path = checkpoint.save(tmp_path, 1, trainable(network), adam, {})
    file = path / "trainable.safetensors"
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    assert checkpoint.latest(tmp_path).path is None


def test_h02_a_full_disk_is_a_clear_error_and_the_earlier_checkpoint_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, adam = trained()
    checkpoint.save(tmp_path, 1, trainable(network), adam, {}, keep=1)

    def full(tensors: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(CheckpointError, match=r"checkpoint-2: cannot be written: .*No space left"):
        checkpoint.save(tmp_path, 2, trainable(network), adam, {}, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    assert checkpoint.latest(tmp_path).path == tmp_path / "checkpoint-1"


def test_h02_a_kill_at_any_moment_leaves_the_earlier_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Die before each flush: the newest complete checkpoint is 1, or 2 once it is whole."""
    network, adam = trained()
    checkpoint.save(tmp_path, 1, trainable(network), adam, {}, keep=1)
    flush = checkpoint._flush
    moments = 0
    survivors = []
    for die_at in range(8):
        moments = 0

        def dying(path: Path, die_at: int = die_at) -> None:
            nonlocal moments
            if moments == die_at:
                raise KeyboardInterrupt
            moments += 1
            flush(path)

        monkeypatch.setattr(checkpoint, "_flush", dying)
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # the dead do not tidy up
        try:
            checkpoint.save(tmp_path, 2, trainable(network), adam, {}, keep=5)
        except KeyboardInterrupt:
            found = checkpoint.latest(tmp_path).path
            survivors.append(found.name if found else None)
        monkeypatch.undo()
        for leftover in tmp_path.glob("checkpoint-2*"):
            shutil.rmtree(leftover)
    # three files, the marker and the folder under another name; then its parent, once it has its own
    assert survivors == ["checkpoint-1"] * 5 + ["checkpoint-2"]


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_h02_a_checkpoint_written_again_is_never_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """Die (or meet a full disk) at the first, second or no rename: the old files stay, or the new ones do."""
    path = tmp_path / "best"

    def write(text: str) -> None:
        with checkpoint.atomic_folder(path) as temporary:
            (temporary / "weights").write_text(text)

    write("old")
    rename, done = os.rename, 0

    def failing(source: Path, target: Path) -> None:
        nonlocal done
        if done == renames:
            raise OSError(errno.ENOSPC, "No space left on device")
        done += 1
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        if renames < 2:
            patch.setattr(checkpoint, "_bring_back", lambda *_: None)  # the dead do not tidy up
            with pytest.raises(CheckpointError, match="No space left"):
                write("new")
        else:
            write("new")
    if renames == 1:
        assert not path.exists()
        assert checkpoint.is_complete(tmp_path / "best.old")
        with (
            pytest.raises(CheckpointError, match="free space"),
            checkpoint.atomic_folder(path),
        ):
            raise OSError(errno.ENOSPC, "No space left on device")
    assert checkpoint.is_complete(path)
    assert (path / "weights").read_text() == ("new" if renames == 2 else "old")
    assert [entry.name for entry in tmp_path.iterdir()] == ["best"]


def test_h05_newest_is_by_number_and_other_names_do_not_count(tmp_path: Path) -> None:
    network, adam = trained()
    for step in (900, 1000):
        checkpoint.save(tmp_path, step, trainable(network), adam, {})
    shutil.copytree(tmp_path / "checkpoint-900", tmp_path / "checkpoint-best")
    shutil.copytree(tmp_path / "checkpoint-900", tmp_path / "checkpoint-2000.tmp")
    assert checkpoint.latest(tmp_path).path == tmp_path / "checkpoint-1000"
    assert checkpoint.latest(tmp_path / "nowhere").path is None


def test_old_checkpoints_are_removed_once_the_new_one_is_complete(tmp_path: Path) -> None:
    network, adam = trained()
    for step in (8, 9, 10, 11):
        checkpoint.save(tmp_path, step, trainable(network), adam, {}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-11"]


def test_the_same_step_can_be_written_again(tmp_path: Path) -> None:
    network, adam = trained()
    checkpoint.save(tmp_path, 1, trainable(network), adam, {"success": 0.1})
    path = checkpoint.save(tmp_path, 1, trainable(network), adam, {"success": 0.2})
    assert checkpoint.load(path, trainable(network))["success"] == 0.2


def test_another_model_is_refused(tmp_path: Path) -> None:
    network, adam = trained()
    path = checkpoint.save(tmp_path, 1, trainable(network), adam, {})
    with pytest.raises(CheckpointError, match=r"its 0\.bias has shape \(3,\), the model's \(4,\)"):
        checkpoint.load(path, trainable(model(width=4)))
    with pytest.raises(CheckpointError, match=r"2 names differ, e\.g\. '1\.bias'"):
        checkpoint.load(path, trainable(nn.Sequential(nn.Linear(2, 3))))


def test_too_little_space_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Linear(1024, 1024, bias=False)  # 4 MiB; with moments 12; two kept and one more: 36
    usage = shutil._ntuple_diskusage  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 35 * 2**20))
    with pytest.raises(CheckpointError, match="3 checkpoints need about 36 MiB, but 35 are free"):
        checkpoint.check_space(tmp_path, trainable(network))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 36 * 2**20))
    checkpoint.check_space(tmp_path, trainable(network))


def test_learning_rates_by_hand() -> None:
    def rates(steps: int, **options: Any) -> list[float]:
        config = OptimiserConfig(learning_rate=1.0, **options)
        return [optimiser.learning_rate(config, step, steps) for step in range(steps)]

    assert rates(3, schedule="constant") == [1, 1, 1]
    assert rates(4, schedule="linear") == [1, 0.75, 0.5, 0.25]
    assert rates(6, schedule="linear", warmup=1 / 3) == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert rates(4, schedule="cosine") == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)
    assert rates(1, schedule="linear", warmup=0.1) == [1]


def test_weight_decay_spares_biases_and_norms() -> None:
    network = model()
    adam = optimiser.build(trainable(network), OptimiserConfig(weight_decay=0.5))
    decayed = {id(p) for group in adam.param_groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {id(network[0].weight)}  # type: ignore[index]


def test_a_frozen_model_cannot_be_trained() -> None:
    with pytest.raises(TrainingError, match="no trainable parameters"):
        optimiser.build(trainable(model().requires_grad_(False)), OptimiserConfig())


def test_copies_of_the_weights_beside_the_checkpoints_need_space_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = nn.Linear(1024, 1024, bias=False)  # 4 MiB; three checkpoints 36, two copies 8
    usage = shutil._ntuple_diskusage  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 43 * 2**20))
    with pytest.raises(CheckpointError, match="need about 44 MiB, but 43 are free"):
        checkpoint.check_space(tmp_path / "not/there/yet", trainable(network), copies=2)
    assert list(tmp_path.iterdir()) == []


def test_other_files_of_a_checkpoint_stay_as_they_were(tmp_path: Path) -> None:
    network, _ = trained()
    checkpoint.save_weights(tmp_path / "best", trainable(network))
    before = (tmp_path / "best/trainable.safetensors").read_bytes()
    files = {"best.safetensors": tmp_path / "best/trainable.safetensors"}
    path = checkpoint.save(tmp_path, 1, trainable(network), None, {}, files=files)
    with torch.no_grad():
        network[0].weight.zero_()  # type: ignore[index,union-attr,operator]
    checkpoint.save_weights(tmp_path / "best", trainable(network))
    assert (path / "best.safetensors").read_bytes() == before
    assert (tmp_path / "best/trainable.safetensors").read_bytes() != before
    assert sorted(json.loads((path / "complete.json").read_text())) == [
        "best.safetensors",
        "state.json",
        "trainable.safetensors",
    ]


def test_a_replacement_broken_off_between_its_renames_is_undone(tmp_path: Path) -> None:
    network, adam = trained()
    os.rename(checkpoint.save(tmp_path, 7, trainable(network), adam, {}), tmp_path / "checkpoint-7.old")
    checkpoint.save(tmp_path, 5, trainable(network), adam, {})
    assert checkpoint.latest(tmp_path).path == tmp_path / "checkpoint-5"
    checkpoint.recover(tmp_path)
    assert checkpoint.latest(tmp_path).path == tmp_path / "checkpoint-7"


def test_damage_that_leaves_the_size_is_named(tmp_path: Path) -> None:
    network, adam = trained()
    path = checkpoint.save(tmp_path, 1, trainable(network), adam, {})
    for name, message in {
        "state.json": r"state\.json is damaged: .*; take an earlier checkpoint",
        "optimiser.safetensors": r"optimiser\.safetensors is damaged",
        "trainable.safetensors": r"trainable\.safetensors is damaged",
    }.items():
        (path / name).write_bytes(b"\xff" * (path / name).stat().st_size)
        with pytest.raises(CheckpointError, match=message):
            checkpoint.load(path, trainable(network), adam)
