"""Stages in other orders, and what they take from elsewhere: stored trajectories, weights, a reference."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from renshu.errors import CheckpointError, ConfigError, DataError
from renshu.handover.pack import pack
from renshu.handover.reproduce import reproduce
from renshu.handover.unpack import open_bundle
from renshu.pipeline.check import check
from test_pipeline_five import PAIRS, SAMPLE, recipe_in, train
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe

WARM_UP = {
    "name": "warm-up",
    "sft": {"demonstrations": 16, "careful": 0.4, "epochs": 24, "rows_per_step": 16, "learning_rate": 0.1},
}
ROLLOUTS = {"steps": 2, "tasks_per_step": 2, "group": 8, "learning_rate": 0.02}
PRACTICE = {"name": "practice", "grpo": ROLLOUTS, **SAMPLE}
PREFER = {"name": "prefer", "dpo": ROLLOUTS, **SAMPLE}
STILL = {"learning_rate": 1e-30, "rows_per_step": 64}  # weights stay as they are, to the last bit


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"), template=qwen_template())


@pytest.fixture(scope="module")
def first(tmp_path_factory, model) -> Path:
    """A run of SFT → DPO → GRPO → SFT on what it has verified, without an adapter."""
    verified = {"name": "imitate", "sft": {"trajectories": "practice", **STILL}}
    folder = tmp_path_factory.mktemp("first") / "run"
    return train(recipe_in(folder, model, [WARM_UP, PREFER, PRACTICE, verified], adapter=False))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.open("rb")]


def rollouts_of(run: Path, stage: str) -> list[list[dict[str, Any]]]:
    return [lines(file) for file in sorted((run / "trajectories" / stage).glob("step-*.jsonl"))]


def findings(run: Path) -> list[str]:
    path = run / "findings.jsonl"
    return [row["text"] for row in lines(path) if row["name"] == "data"] if path.is_file() else []


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "trainable.safetensors")


def same(one: Path, other: Path) -> bool:
    before, after = weights(one), weights(other)
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_sft_then_dpo_then_grpo_then_sft_on_the_verified(first):
    told = lines(first / "metrics.jsonl")
    assert [(row["stage"], row["step"]) for row in told if row["stage"] != "warm-up"] == [
        *(("prefer", 1), ("prefer", 2), ("practice", 1), ("practice", 2), ("imitate", 1)),
    ]
    preferred = rollouts_of(first, "prefer")
    for row, step in zip([row for row in told if row["stage"] == "prefer"], preferred, strict=True):
        tasks = dict.fromkeys(record["task"] for record in step)
        rewards = [{r["reward"] for r in step if r["task"] == task} for task in tasks]
        assert row["pairs"] == sum(len(known) > 1 for known in rewards)
        assert row["rollouts"] == 16
    made = [record for step in rollouts_of(first, "practice") for record in step]
    verified = [json.dumps(record["paths"]) for record in made if record["success"]]
    assert len(set(verified)) < len(verified) < len(made) == 32
    told_ids = {tuple(i for s in json.loads(p)[0] for i in s["ids"]) for p in verified}
    assert findings(first) == [
        f"stage imitate: trajectories: {len(verified)} of 32 succeeded",
        f"stage imitate: trajectories that others equal, dropped: {len(verified) - len(told_ids)}",
    ]
    assert told[-1]["rows"] == len(told_ids)
    assert same(first / "checkpoints/stages/practice", first / "checkpoints/stages/imitate")


def test_kto_from_the_store_of_an_earlier_run_that_starts_from_its_weights(first, model, tmp_path):
    stage = {
        "name": "thumbs",
        "from": "earlier:warm-up",
        "kto": {"trajectories": "earlier:practice", **STILL},
    }
    recipe = recipe_in(tmp_path / "second", model, [stage], adapter=False)
    (tmp_path / "second/earlier").symlink_to(first, target_is_directory=True)
    run = train(recipe)
    made = [record for step in rollouts_of(first, "practice") for record in step]
    (step,) = lines(run / "metrics.jsonl")
    assert (step["rows_chosen"], step["rows_rejected"]) == (
        sum(record["success"] for record in made),
        sum(not record["success"] for record in made),
    )
    assert findings(run) == []  # the tokens are those that were sampled
    assert same(first / "checkpoints/stages/warm-up", run / "checkpoints/stages/thumbs")
    record = json.loads((run / "provenance.json").read_text())
    assert record["start of thumbs"] == sha256(first / "checkpoints/stages/warm-up/trainable.safetensors")
    steps = sorted((first / "trajectories/practice").iterdir())
    sums = "".join(map(sha256, steps)).encode()
    assert record["trajectories of thumbs"] == hashlib.sha256(sums).hexdigest()

    archive = pack(run, tmp_path / "bundle.zip")
    taken = {name for name in archive.files if "thumbs" in name}
    assert taken == {
        *(f"source/trajectories-thumbs/trajectories/practice/{file.name}" for file in steps),
        *(f"source/weights-thumbs/{name}" for name in ("complete.json", "trainable.safetensors")),
    }
    again = reproduce(open_bundle(archive.path, tmp_path / "opened"), lambda files: True)
    assert again.identical


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_dpo_alone_from_a_file_compares_with_the_untrained_model(model, tmp_path):
    stage = {
        "name": "pairs",
        "dpo": {"data": "pairs.jsonl", "epochs": 3, "pairs_per_step": 4, "learning_rate": 0.02},
    }
    recipe = recipe_in(tmp_path / "one", model, [stage], adapter=False)
    path = recipe.parent / "pairs.jsonl"
    path.write_text(path.read_text() + json.dumps({**PAIRS[0], "rejected": "b"}) + "\n{\n")
    run = train(recipe)
    assert findings(run) == [
        "stage pairs: 2 of 6 lines of pairs.jsonl set aside (equal sides: 1, not JSON: 1)"
    ]
    margins = [row["margin"] for row in lines(run / "metrics.jsonl")]
    assert margins[0] == 0.0
    assert margins[0] < margins[1] < margins[2]
    assert lines(run / "metrics.jsonl")[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    both = [{**stage, "reference": which} for which in ("start", "base")]
    both[1]["name"] = "again"
    moved = lines(train(recipe_in(tmp_path / "two", model, both, adapter=False)) / "metrics.jsonl")
    assert [row["margin"] for row in moved[:3]] == margins
    assert moved[3]["margin"] > margins[2]  # against the model before both stages


def test_what_a_stage_cannot_take_is_refused_before_training(first, model, tmp_path):
    recipe = recipe_in(tmp_path / "r", model, [WARM_UP], adapter=False)
    (recipe.parent / "earlier").symlink_to(first, target_is_directory=True)
    thumbs = {"name": "thumbs", "kto": {"trajectories": "practice"}}

    def refused(error: type[Exception], text: str, *stages: dict[str, Any], **settings: Any) -> None:
        with pytest.raises(error, match=text):
            train(write_recipe(recipe.parent, model, stages=list(stages), **settings))

    refused(
        ConfigError,
        "grpo learns from what its own steps sample; trajectories would be of another policy",
        {"name": "a", "grpo": {"trajectories": "earlier"}},
    )
    refused(ConfigError, "ppo learns from what its own", {"name": "a", "ppo": {"data": "x.jsonl"}})
    refused(ConfigError, "reference: sft compares with nothing here", {**WARM_UP, "reference": "base"})
    refused(ConfigError, "reference: grpo compares with nothing here", {**PRACTICE, "reference": "base"})
    refused(
        ConfigError, "sample: dpo samples nothing here", {"name": "a", "dpo": {"data": "x.jsonl"}, **SAMPLE}
    )
    refused(
        ConfigError,
        "threshold and best_of_group choose among trajectories",
        {"name": "a", "sft": {"threshold": 0.5}},
    )
    refused(
        ConfigError,
        "data and trajectories: rows come from one",
        {"name": "a", "sft": {"data": "x", "trajectories": "y"}},
    )
    refused(ConfigError, "stage thumbs: practice is not over before it begins", thumbs, PRACTICE)
    refused(
        ConfigError,
        "a stage of sft samples nothing here",
        WARM_UP,
        {**thumbs, "kto": {"trajectories": "warm-up"}},
    )
    refused(
        ConfigError,
        r"trajectories: gone: neither an earlier stage \(warm-up\) nor a run, file or folder",
        WARM_UP,
        {**thumbs, "kto": {"trajectories": "gone"}},
    )
    refused(
        ConfigError,
        "earlier/trajectories/warm-up has no trajectories",
        {**thumbs, "kto": {"trajectories": "earlier:warm-up"}},
    )
    refused(ConfigError, "from: gone: neither an earlier stage", {**WARM_UP, "from": "gone"})
    for gone in ({**WARM_UP, "from": "earlier:gone"}, {**thumbs, "kto": {"trajectories": "earlier:gone"}}):
        refused(ConfigError, r": earlier:gone: .*earlier has no stage gone; it has warm-up, prefer", gone)
    refused(
        CheckpointError,
        "from: earlier: .* is of another model or adapter",
        {**WARM_UP, "from": "earlier"},
        model={"name": str(model), "adapter": {"rank": 2}},
    )
    refused(
        DataError,
        "none of 32 have a reward of 9 or more: nothing to imitate",
        {"name": "a", "sft": {"trajectories": "earlier:practice", "threshold": 9}},
    )
    refused(
        DataError,
        "nothing to learn from: groups left out, as their rewards differ too little: 4",
        {"name": "a", "dpo": {"trajectories": "earlier:practice", "margin": 9.0}},
    )
    (recipe.parent / "empty.jsonl").write_text("")
    refused(DataError, "the file is empty", {"name": "a", "kto": {"data": "empty.jsonl"}})


def test_a_stage_starts_from_what_a_run_kept_unless_its_adapter_is_another(model, tmp_path):
    settings = {"name": str(model), "adapter": {"rank": 2}}
    first = recipe_in(tmp_path / "a", model, [{**WARM_UP, "sft": {"demonstrations": 2}}])
    run = train(first)
    stage = {**WARM_UP, "from": str(run)}
    still = {**stage, "name": "again", "sft": {"demonstrations": 2, **STILL}}
    again = train(write_recipe(first.parent, model, stages=[still], model=settings, out=str(tmp_path / "b")))
    assert same(run / "checkpoints/best", again / "checkpoints/stages/again")
    wider = {**settings, "adapter": {"rank": 2, "alpha": 3}}
    other = write_recipe(first.parent, model, stages=[stage], model=wider, out=str(tmp_path / "c"))
    with pytest.raises(ConfigError, match="its adapter has other settings"):
        train(other)
    changed = shutil.copytree(model, tmp_path / "other")
    tensors = load_file(changed / "model.safetensors")
    tensors["model.norm.weight"] *= 2
    save_file(tensors, changed / "model.safetensors", metadata={"format": "pt"})
    moved = {**settings, "name": str(changed)}
    other = write_recipe(first.parent, model, stages=[stage], model=moved, out=str(tmp_path / "c"))
    with pytest.raises(ConfigError, match="its adapter is of another model"):
        train(other)


def test_check_says_what_there_is_to_learn_from(first, model, tmp_path):
    stages = [
        {"name": "pairs", "dpo": {"data": "pairs.jsonl"}},
        {"name": "thumbs", "kto": {"trajectories": "earlier:practice"}},
        {"name": "gone", "kto": {"data": "gone.jsonl"}},
        {"name": "ups", "kto": {"data": "ups.jsonl"}},
        {**PREFER, "dpo": {"steps": 1, "group": 2}},
    ]
    recipe = recipe_in(tmp_path / "r", model, stages, adapter=False)
    (recipe.parent / "earlier").symlink_to(first, target_is_directory=True)
    ups = [{"prompt": "go", "completion": answer, "label": True} for answer in ("b", "c")]
    (recipe.parent / "ups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*ups, 5]))
    report = check(str(recipe), samples=2)
    told = {finding.where: (finding.code, finding.what) for finding in report.findings}
    assert told["stages.0.dpo"] == ("data_read", "4 to learn from")
    assert told["stages.1.kto"] == ("data_read", "32 to learn from")
    assert told["stages.2.kto"][0] == "data_refused"
    assert told["stages.3.kto"] == (
        "data_read",
        "2 to learn from; 1 of 3 lines of ups.jsonl set aside (no object: 1); "
        "all 2 thumbs point up: nothing is told apart",
    )
    assert report.dry_run is not None
    assert [sample.about for sample in report.dry_run.samples[:2]] == [
        *("a chosen side of pairs (dpo)", "its rejected side of pairs (dpo)"),
    ]
    assert not report.passed
