"""One file of trajectories as rows, pairs and thumbs: who is taken, and what is said of the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from renshu.models import ModelSettings
from renshu.pipeline.agent import build_agent
from renshu.pipeline.environments import load_environment
from renshu.pipeline.recipe import Recipe
from renshu.pipeline.supply import Supplier, Supply
from renshu.types import Labelled, Message, Pair, Row
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import ECHO

# task, answer, reward, success
EPISODES = [
    ("one", "b", 1.0, True),
    ("one", "bb", 0.75, True),
    ("one", "c", 0.25, False),
    ("two", "d", 0.5, False),
    ("two", "e", 0.5, None),
    ("three", "b", 1.0, True),
    ("four", "f", None, None),
]


@pytest.fixture(scope="module")
def supply(tmp_path_factory):
    folder = tmp_path_factory.mktemp("supply")
    (folder / "bell.py").write_text(ECHO, encoding="utf-8")
    rows = [
        {
            "task": task,
            "messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": answer}],
            "reward": reward,
            "success": success,
        }
        for task, answer, reward, success in EPISODES
    ]
    (folder / "store.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    name = str(save_tiny_model(folder / "model", template=qwen_template()))
    agent = build_agent(ModelSettings(name=name))
    environment = load_environment("bell.py:Bell", folder)

    def of(algorithm: str, **settings: Any) -> tuple[list[Any], list[str]]:
        stage = {"name": "a", algorithm: {"trajectories": "store.jsonl", **settings}}
        recipe = Recipe.from_dict({"env": "bell.py:Bell", "model": {"name": name}, "stages": [stage]})
        found = Supplier(recipe, environment, agent, folder).supply(recipe.stages[0])
        assert isinstance(found, Supply)
        rendered, *notes = found.notes
        assert rendered.startswith("trajectories: 7 of 7 trajectories were rendered anew")
        return [_said(agent.chat, item) for item in found.items], notes

    tools = [spec.schema for spec in environment().tools()]
    of.prompt_tokens = len(agent.chat.prompt([Message("user", "go")], tools))
    return of


def _said(chat: Any, item: Row | Pair | Labelled) -> Any:
    if isinstance(item, Pair):
        return _said(chat, item.chosen), _said(chat, item.rejected)
    if isinstance(item, Labelled):
        return _said(chat, item.row), item.good
    return chat.said([token for token, trained in zip(item.ids, item.trained, strict=True) if trained])


def test_rows_are_what_succeeded_or_earned_enough_each_once(supply):
    twice = "trajectories that others equal, dropped: 1"
    assert supply("sft") == (["b", "bb"], ["trajectories: 3 of 7 succeeded", twice])
    enough = "trajectories: 5 of 7 have a reward of 0.5 or more"
    assert supply("sft", threshold=0.5) == (["b", "bb", "d", "e"], [enough, twice])
    assert supply("sft", threshold=0.5, best_of_group=True) == (
        ["b", "d"],
        ["trajectories: 3 of 7 have a reward of 0.5 or more and are the best of their group", twice],
    )


def test_pairs_are_the_best_and_the_worst_of_a_group_or_all_that_differ(supply):
    left_out = [
        "trajectories left out (unscored: 1)",
        "groups left out, as their rewards differ too little: 3",
    ]
    assert supply("dpo") == ([("b", "c")], left_out)
    assert supply("dpo", pairs="all") == ([("b", "bb"), ("b", "c"), ("bb", "c")], left_out)
    assert supply("dpo", pairs="all", margin=0.5) == ([("b", "c")], left_out)


def test_thumbs_are_success_or_a_threshold(supply):
    assert supply("kto") == (
        [("b", True), ("bb", True), ("c", False), ("d", False), ("b", True)],
        ["trajectories left out (unscored: 1, undecided: 1)"],
    )
    judged = [("b", True), ("bb", True), ("c", False), ("d", True), ("e", True), ("b", True)]
    assert supply("kto", threshold=0.5) == (judged, ["trajectories left out (unscored: 1)"])
    _, notes = supply("kto", threshold=0.0)
    assert notes[-1] == "all 6 thumbs point up: nothing is told apart"


def test_what_is_too_long_is_cut_and_sides_that_are_equal_then_are_dropped(supply):
    whole = supply("dpo", pairs="all")
    short = supply("dpo", pairs="all", max_length=supply.prompt_tokens + 1)
    assert whole[0][0] == ("b", "bb")
    assert short == (
        [("b", "c"), ("b", "c")],
        [
            "trajectories left out (unscored: 1)",
            "groups left out, as their rewards differ too little: 3",
            "left out (equal: 1)",
            "rows cut at their end: 4",
        ],
    )
