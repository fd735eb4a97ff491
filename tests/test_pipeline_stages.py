"""Task order, looks, keeper: the small parts of a stage, by hand."""

import torch

from renshu.models import ModelSettings
from renshu.models.load import load
from renshu.pipeline.keeper import Keeper, Mark
from renshu.pipeline.looks import Looks
from renshu.pipeline.practice import TaskOrder
from renshu.pipeline.recipe import StopWhen
from renshu.types import Task
from tiny_models import save_tiny_model


def test_every_task_once_an_epoch_in_another_order_each():
    tasks = [Task(str(i)) for i in range(6)]
    order = TaskOrder(tasks, 4, seed=1)
    seen = [task.id for step in range(3) for task in order(step)]
    assert sorted(seen[:6]) == sorted(seen[6:]) == list("012345")
    assert seen[:6] != seen[6:]
    assert [t.id for t in TaskOrder(tasks, 4, seed=1)(2)] == seen[8:]  # a step alone gives the same
    assert [t.id for t in TaskOrder(tasks, 4, seed=2)(0)] != seen[:4]


def test_looks_end_a_stage_at_the_wanted_success():
    looks = Looks(StopWhen(success=0.9))
    assert [bool(looks.verdict(s)) for s in (0.5, 0.89, 0.9)] == [False, False, True]


def test_looks_end_a_stage_that_no_longer_rises():
    looks = Looks(StopWhen(patience=2))
    # 0.5 is new, 0.4 is the first without rise, 0.6 is new again, then two without.
    assert [bool(looks.verdict(s)) for s in (0.5, 0.4, 0.6, 0.6, 0.5)] == [False, False, False, False, True]
    assert Looks(None).verdict(1.0) is None
    assert looks.verdict(None) is None


def test_keeper_restores_the_best_and_prefers_the_later_of_equals(tmp_path):
    folder = save_tiny_model(tmp_path / "model", template="{{ messages[0].content }}")
    loaded = load(ModelSettings(name=str(folder)))
    keeper = Keeper(loaded, tmp_path / "checkpoints")
    weight = loaded.model.model.norm.weight
    for step, (value, success) in enumerate([(1.0, None), (2.0, 0.5), (3.0, 0.5), (4.0, 0.4), (5.0, None)]):
        with torch.no_grad():
            weight.fill_(value)
        kept = keeper.offer(Mark("practice", step), success)
        assert kept == (step in (0, 1, 2))
    assert keeper.finish() == Mark("practice", 2)
    assert weight.tolist() == [3.0] * 16
    again = load(ModelSettings(name=str(tmp_path / "checkpoints/final")))
    assert again.model.model.norm.weight.tolist() == [3.0] * 16
