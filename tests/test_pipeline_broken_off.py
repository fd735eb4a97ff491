"""A run that was killed or failed: what it has kept can be used."""

import shutil
from pathlib import Path

import pytest

from renshu.errors import ConfigError
from renshu.pipeline import train as pipeline
from renshu.pipeline.finished import find_target
from renshu.pipeline.measure import measure
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.watch import Watcher
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe

STAGES = [{"name": "warm-up", "sft": {"demonstrations": 16, "epochs": 24, "learning_rate": 0.1}}]


def test_a_log_never_takes_the_place_of_a_file(tmp_path):
    mine = tmp_path / "notes.txt"
    mine.write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt is there already"):
        measure("embedded", log=mine)
    assert mine.read_text() == "mine"


class Notes(Watcher):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def noted(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> Path:
    """A run whose disk was full when the kept model was written."""
    folder = tmp_path_factory.mktemp("broken")
    model = save_tiny_model(folder / "model", template=qwen_template())
    recipe = write_recipe(folder, model, stages=STAGES, eval={"tasks": 6, "dev_tasks": 2, "max_tokens": 6})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("renshu.pipeline.keeper.save", full)
        with pytest.raises(Exception, match="No space left"):
            pipeline.train_recipe(read_recipe(str(recipe)), name="bell", base=folder)
    return folder / "run-bell-3"


def test_the_best_weights_of_a_broken_run_are_measured(broken):
    assert not (broken / "summary.json").exists()
    assert not (broken / "checkpoints/final").exists()
    watcher = Notes()
    assert measure(str(broken), watcher=watcher)["success"] == 1.0  # the untrained model solves nothing
    assert watcher.notes == ["the run did not come to its end: this is the best it has kept so far"]


def test_a_half_copied_model_is_not_taken_for_the_kept_one(broken, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(broken, run)
    shutil.copytree(broken.parent / "model", run / "checkpoints/final")  # without its marker
    assert find_target(str(run)).weights == run / "checkpoints/best"
    (run / "checkpoints/best/trainable.safetensors").write_bytes(b"half")
    with pytest.raises(ConfigError, match="has kept no model"):
        find_target(str(run))


def test_a_misspelt_run_is_not_looked_up_on_the_hub(broken, tmp_path):
    shutil.copytree(broken, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"rum: no such folder; .* holds run"):
        find_target(str(tmp_path / "rum"))
    assert find_target("owner/name").model.name == "owner/name"
