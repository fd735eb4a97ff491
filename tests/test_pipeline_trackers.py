"""Trackers get what a run tells; one that fails, or that is not there, is no harm to a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

from renshu.errors import ConfigError
from renshu.pipeline import resume_run, train_recipe
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.run_folder import RunFolder
from renshu.pipeline.trackers import Tracking, flat, require_trackers
from renshu.pipeline.watch import Watcher
from renshu.train import Snapshot
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe


class Notebook(GeneralTracker):
    """Writes down what it is told, by run name; fails at the step in `torn`."""

    name = "notebook"
    requires_logging_directory = True
    main_process_only = False
    told: ClassVar[dict[str, list[Any]]] = {}
    torn: ClassVar[int | None] = None

    def __init__(self, run_name: str, logging_dir: str) -> None:
        super().__init__()
        self.run_name, self.folder = run_name, logging_dir

    def start(self) -> None:
        self.told.setdefault(self.run_name, []).append("start")

    @property
    def tracker(self) -> None:
        return None

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.told[self.run_name].append(values)

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        if step == Notebook.torn:
            raise ConnectionError("no route")
        self.told[self.run_name].append((step, values))

    def finish(self) -> None:
        self.told[self.run_name].append("finish")


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> type[Notebook]:
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "notebook", Notebook)
    monkeypatch.setattr(Notebook, "told", {})
    monkeypatch.setattr(Notebook, "torn", None)
    return Notebook


def tiny_recipe(tmp_path: Path) -> Any:
    model = save_tiny_model(tmp_path / "model", template=qwen_template())
    warm_up = {"demonstrations": 8, "epochs": 2, "rows_per_step": 8, "learning_rate": 0.01}
    practice = {"steps": 2, "tasks_per_step": 2, "group": 2}
    stages = [
        {"name": "warm-up", "sft": warm_up},
        {"name": "practice", "grpo": practice, "sample": {"max_tokens": 3}},
    ]
    evaluation = {"tasks": 2, "dev_tasks": 2, "every": 5, "max_tokens": 3}
    path = write_recipe(
        tmp_path, model, stages=stages, eval=evaluation, trackers=["notebook"],
        checkpoints={"every": 1, "keep": 1},
    )  # fmt: skip
    return read_recipe(str(path))


def test_a_tracker_gets_settings_steps_and_evaluations(notebook: Any, tmp_path: Path) -> None:
    run = train_recipe(tiny_recipe(tmp_path), name="bell", base=tmp_path)
    (title,) = notebook.told
    assert title == run.name == "run-bell-3"
    start, settings, *logged, finish = notebook.told[title]
    assert (start, finish) == ("start", "finish")
    assert settings["stages.1.grpo.group"] == 2
    assert settings["trackers.0"] == "notebook"
    assert [step for step, _ in logged] == [0, 1, 2, 2, 3, 4, 4, 4]  # base; warm-up, its arm; practice, …
    assert set(logged[0][1]) >= {"evaluation/base/success", "evaluation/base/n"}
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [values["warm-up/loss"] for _, values in logged[1:3]] == [row["loss"] for row in metrics[:2]]
    assert logged[4][1]["practice/rollouts"] == 4
    assert all(
        isinstance(v, int | float) and math.isfinite(v) for _, values in logged for v in values.values()
    )


def test_a_tracker_that_fails_is_a_finding_and_a_resumed_run_counts_on(
    notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Breaks(Watcher):
        def stage_step(self, stage: Any, snapshot: Any, dev_success: Any) -> None:
            if (stage.name, snapshot.step) == ("practice", 2):
                raise KeyboardInterrupt

    notebook.torn = 2
    with pytest.raises(KeyboardInterrupt):
        train_recipe(tiny_recipe(tmp_path), name="bell", base=tmp_path, watcher=Breaks())
    run = tmp_path / "run-bell-3"
    assert notebook.told[run.name][-1][0] == 1  # it is left out from its failure on
    findings = [json.loads(line) for line in (run / "findings.jsonl").read_text("utf-8").splitlines()]
    told = [f for f in findings if f["name"] == "tracker"]
    text = "tracker notebook failed and is left out: ConnectionError: no route"
    assert told == [{"stage": "warm-up", "step": 2, "name": "tracker", "text": text}]
    kept = sorted(path.name for path in (run / "checkpoints").glob("checkpoint-*"))
    assert kept == ["checkpoint-3"]  # checkpoints.keep: 1
    notebook.torn = None
    resume_run(run)
    began = len(notebook.told[run.name]) - notebook.told[run.name][::-1].index("start")
    logged = notebook.told[run.name][began + 1 : -1]
    assert [step for step, _ in logged] == [4, 4, 4]  # the second step of practice, its arm, the final one
    assert "practice/loss" in logged[0][1]


def test_the_watcher_below_is_told_all(tmp_path: Path) -> None:
    heard: list[tuple[Any, ...]] = []
    methods = [name for name in vars(Watcher) if not name.startswith("_")]
    below = Watcher()
    for name in methods:
        setattr(below, name, lambda *told, name=name: heard.append((name, *told)))
    run = RunFolder.create(tmp_path / "run", overwrite=False)
    tracking = Tracking(below, run)
    stage = type("Stage", (), {"name": "warm-up"})()
    snapshot = Snapshot(1, 2, {"loss": 1.0}, (), [])
    arguments = {
        "noted": ("text",), "stage_begins": (stage, 2), "stage_step": (stage, snapshot, 0.5),
        "stage_ends": (stage, None), "evaluating": ("base", 1, 2), "evaluated": ({"arm": "base"},),
        "broken_off": (),
    }  # fmt: skip
    for name in methods:
        getattr(tracking, name)(*arguments[name])
    assert heard == [(name, *arguments[name]) for name in methods]
    run.close()


def test_trackers_that_cannot_be_had_are_refused_before_a_run(tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(ConfigError, match=r"'tensorbord' is unknown; known: aim, .*tensorboard, .*wandb"):
        require_trackers(["tensorbord"])
    monkeypatch.setattr("accelerate.tracking._available_trackers", [])
    with pytest.raises(ConfigError, match="wandb is not installed: pip install wandb"):
        require_trackers(["wandb"])
    recipe = tiny_recipe(tmp_path).model_copy(update={"trackers": ("mlflow",)})
    with pytest.raises(ConfigError, match="mlflow is not installed"):
        train_recipe(recipe, name="bell", base=tmp_path)
    assert not (tmp_path / "run-bell-3").exists()
    require_trackers([])


def test_settings_are_told_flat() -> None:
    nested = {"a": {"b": [1, {"c": True}]}, "d": None, "e": "x", "f": [], "u": "http://me:secret@host/v1"}
    assert dict(flat(nested)) == {"a.b.0": 1, "a.b.1.c": True, "e": "x", "u": "http://host/v1"}


def test_tensorboard_writes_into_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = tiny_recipe(tmp_path).model_copy(update={"trackers": ("tensorboard",)})
    run = train_recipe(recipe, name="bell", base=tmp_path)
    events = EventAccumulator(str(run / "trackers" / run.name))
    events.Reload()
    assert [event.step for event in events.Scalars("practice/loss")] == [3, 4]
