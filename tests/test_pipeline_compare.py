"""Arms of runs and models on one set of tasks: read from a run where it has them, measured where not."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from renshu.errors import ConfigError
from renshu.evaluation import Prices, Tries, wilson
from renshu.pipeline import bench
from renshu.pipeline.arms import find_arms
from renshu.pipeline.compare import compare_targets, repeat_task, settings_difference
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.resume import resume_run
from renshu.pipeline.run_folder import RunFolder
from renshu.pipeline.train import train_recipe
from renshu.pipeline.watch import Watcher
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import ECHO, write_recipe

STAGES = [
    {"name": "warm-up", "sft": {"demonstrations": 8, "learning_rate": 0.1, "epochs": 40}},
    {"name": "practice", "grpo": {"steps": 1, "tasks_per_step": 2, "group": 2}, "sample": {"max_tokens": 6}},
]
EVAL = {"tasks": 6, "dev_tasks": 2, "max_tokens": 6, "samples": {"k": 2, "temperature": 1.0}}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny", template=qwen_template())


@pytest.fixture(scope="module")
def run(tmp_path_factory, model) -> Path:
    """A run that solves nothing at first and everything after its warm-up."""
    folder = tmp_path_factory.mktemp("run")
    path = write_recipe(folder, model, stages=STAGES, eval=EVAL)
    return train_recipe(read_recipe(str(path)), name="bell", base=folder)


@pytest.fixture
def copy(run, tmp_path) -> Path:
    """The run in another folder, to be damaged."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


@pytest.fixture
def no_model(monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(bench, "build_agent", refuse)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def told(found: dict) -> dict[str, float]:
    return {arm["arm"]: arm["success"] for arm in found["arms"]}


def test_a_run_writes_its_samples_and_their_summary(run):
    (result,) = json.loads((run / "summary.json").read_text())["evaluation"].values()
    assert [arm["arm"] for arm in result["arms"]] == ["base", "warm-up", "practice", "final"]
    for arm in result["arms"]:
        lines = (run / f"evaluation/samples/{arm['arm']}.jsonl").read_text().splitlines()
        tasks = [json.loads(line)["task"] for line in lines]
        assert tasks == [f"draw/test/{i}" for i in range(6) for _ in range(2)]
    assert result["arms"][0]["samples"]["pass_hat"] == [0.0, 0.0]
    final = result["arms"][-1]["samples"]
    assert (final["pass_hat"], final["pass_at"], final["n"]) == ([1.0, 1.0], [1.0, 1.0], 6)
    assert (final["low"], final["distinct"]) == (wilson(6, 6).low, 0.5)  # one answer in two tries


def test_a_resumed_run_has_the_samples_of_an_undisturbed_one(run, model, tmp_path):
    class Stop(Watcher):
        def stage_begins(self, stage, steps):
            if stage.name == "practice":
                raise KeyboardInterrupt

    path = write_recipe(tmp_path, model, stages=STAGES, eval=EVAL)
    with pytest.raises(KeyboardInterrupt):
        train_recipe(read_recipe(str(path)), name="bell", base=tmp_path, watcher=Stop())
    again = resume_run(tmp_path / run.name)
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in (run, again))
    assert first["evaluation"] == second["evaluation"]
    assert (again / "evaluation/samples/final.jsonl").is_file()


def test_one_run_is_all_its_arms_as_it_measured_them(run, monkeypatch):
    loaded = []
    build = bench.build_agent

    def count(*arguments):
        loaded.append(arguments)
        return build(*arguments)

    monkeypatch.setattr(bench, "build_agent", count)
    found = compare_targets([str(run)])
    assert list(told(found)) == ["base", "few-shot", "warm-up", "practice", "final"]
    assert len(loaded) == 1  # few-shot was not measured by the run
    (result,) = json.loads((run / "summary.json").read_text())["evaluation"].values()
    for arm in result["arms"]:
        again = next(other for other in found["arms"] if other["arm"] == arm["arm"])
        for key in ("success", "low", "high", "n", "unscored", "reward", "samples"):
            assert again[key] == arm[key]
    final = found["arms"][-1]["against"]
    assert (final["gained"], final["lost"], final["p"]) == (6, 0, 2 / 2**6)
    assert final["p_holm"] == 4 * 2 / 2**6  # three arms are as good, few-shot is no better than base
    shared = "final (same weights as practice): no proven difference from base, 100 points ("
    assert found["verdicts"][0].startswith(shared)
    assert (found["tasks"], found["max_tokens"], found["seed"]) == (6, 6, 3)
    assert found["samples"] == {"k": 2, "temperature": 1.0}
    assert (found["settings"], found["notes"]) == ([], [])


def test_fewer_tasks_are_the_first_of_those_on_file(run, no_model):
    found = compare_targets([f"{run}:base", str(run)], tasks=4)
    assert told(found) == {"base": 0.0, "final": 1.0}
    assert [arm["n"] for arm in found["arms"]] == [4, 4]
    assert found["arms"][1]["samples"]["n"] == 4


def test_tokens_and_cost_are_counted_by_hand(run, no_model):
    lines = [json.loads(line) for line in (run / "evaluation/final.jsonl").read_text().splitlines()]
    assert {line["tokens"]["sampled"] for line in lines} == {2}  # "b" and the end of the turn
    prompt = lines[0]["tokens"]["prompt"]
    found = compare_targets([str(run) + ":final"], prices=Prices(prompt=2.0, sampled=10.0))
    (arm,) = found["arms"]
    assert (arm["tokens"]["prompt"], arm["tokens"]["sampled"]) == (prompt, 2)
    assert arm["cost_per_1000"] == pytest.approx((prompt * 2.0 + 2 * 10.0) / 1000)
    assert compare_targets([str(run) + ":final"])["arms"][0]["cost_per_1000"] is None


def test_an_hour_has_its_price_by_measured_seconds(run):
    (arm,) = compare_targets([str(run) + ":warm-up"], tasks=2, prices=Prices(hour=3.6))["arms"]
    assert arm["seconds"] > 0
    assert arm["cost_per_1000"] == pytest.approx(arm["seconds"])
    assert arm["success"] == 1.0  # with the weights that the stage ended with


def test_runs_and_models_in_the_environment_that_is_named(run, model, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    change(other / "recipe.resolved.yaml", "learning_rate: 0.1", "learning_rate: 0.05")
    targets = [str(model), str(run), str(other)]
    found = compare_targets(targets, env=f"{run.parent}/bell.py:Bell", tasks=3, tries=Tries(k=3))
    assert told(found) == {"tiny": 0.0, "run-bell-3": 1.0, "other": 1.0}
    assert found["arms"][2]["samples"]["k"] == 3
    assert found["settings"] == [
        {"key": "stages.0.sft.learning_rate", "values": {"run-bell-3": 0.1, "other": 0.05}}
    ]
    assert found["notes"] == [
        "one run of each: the intervals cover which tasks were drawn, not the luck of a seed; "
        "train with several seeds before you prefer one recipe to another"
    ]


def test_an_arm_without_weights_is_read_or_refused(copy, no_model):
    shutil.rmtree(copy / "checkpoints")
    assert told(compare_targets([f"{copy}:base", f"{copy}:warm-up"])) == {"base": 0.0, "warm-up": 1.0}
    with pytest.raises(ConfigError, match=r"warm-up cannot be .* measured with max_tokens 6, not 7"):
        compare_targets([f"{copy}:warm-up"], max_tokens=7)
    with pytest.raises(ConfigError, match=r"warm-up.jsonl has 6 of 7 tasks"):
        compare_targets([f"{copy}:warm-up"], tasks=7)
    (arm,) = compare_targets([f"{copy}:warm-up"], prices=Prices(hour=1.0))["arms"]
    assert (arm["success"], arm["seconds"], arm["cost_per_1000"]) == (1.0, None, None)  # not timed, not free
    found = compare_targets([f"{copy}:warm-up"], tries=Tries(k=5))
    assert found["notes"] == ["warm-up has no samples: its weights are not kept"]
    assert "samples" not in found["arms"][0]


def test_what_has_changed_since_is_not_read_from_files(copy, tmp_path, no_model):
    shutil.rmtree(copy / "checkpoints")
    (tmp_path / "bell.py").write_text(ECHO.replace('"ding"', '"dong"'), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"the environment is not the one of its run, or has changed since"):
        compare_targets([f"{copy}:warm-up"], env=f"{tmp_path}/bell.py:Bell")
    (tmp_path / "bell.py").write_text(ECHO + "\nclass Gong(Bell): pass\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"the environment is not the one of its run"):
        compare_targets([f"{copy}:warm-up"], env=f"{tmp_path}/bell.py:Gong")
    change(copy / "evaluation/warm-up.jsonl", '"content": "go"', '"content": "come"')
    with pytest.raises(ConfigError, match=r"task draw/test/0 has changed since"):
        compare_targets([f"{copy}:warm-up"])
    change(copy / "evaluation/warm-up.jsonl", "draw/test/0", "draw/test/9")
    with pytest.raises(ConfigError, match=r"measured on other tasks \(draw/test/9, not draw/test/0\)"):
        compare_targets([f"{copy}:warm-up"], tries=None)


def test_the_untrained_model_must_be_the_one_the_run_began_with(copy, model):
    (copy / "evaluation/base.jsonl").unlink()
    assert told(compare_targets([f"{copy}:base"])) == {"base": 0.0}  # measured again
    record = json.loads((copy / "provenance.json").read_text())
    (copy / "provenance.json").write_text(json.dumps(record | {"weights": "0" * 64}))
    with pytest.raises(ConfigError, match=r"base: the model .*tiny is no longer the one that .*copy began"):
        compare_targets([f"{copy}:base"])
    found = compare_targets([str(copy)])  # of one run alone, what cannot be had is left out and told
    assert list(told(found)) == ["warm-up", "practice", "final"]
    assert [note.split(":")[0] for note in found["notes"]] == ["base is left out", "few-shot is left out"]


def test_runs_of_other_tasks_are_refused_until_an_environment_is_named(copy, run, tmp_path):
    (tmp_path / "bell.py").write_text(ECHO.replace("0, 99", "0, 9"), encoding="utf-8")
    record = json.loads((copy / "provenance.json").read_text())
    (copy / "provenance.json").write_text(json.dumps(record | {"base": str(tmp_path)}))
    with pytest.raises(ConfigError, match=r"were measured on other tasks than each other: .*--env"):
        compare_targets([str(run), str(copy)])
    found = compare_targets([str(run), str(copy)], env=f"{run.parent}/bell.py:Bell")
    assert told(found) == {"run-bell-3": 1.0, "copy": 1.0}


def test_a_run_that_was_broken_off_is_compared_with_the_best_it_has_kept(copy):
    shutil.rmtree(copy / "checkpoints/final")
    for name in ("summary.json", "evaluation/final.jsonl"):
        (copy / name).unlink()
    found = compare_targets([f"{copy}:base", str(copy)], tasks=2)
    assert told(found) == {"base": 0.0, "final": 1.0}
    assert found["notes"] == ["final: the run did not come to its end: this is the best it has kept so far"]
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(ConfigError, match=r"final cannot be measured, .* final.jsonl has 0 of 6 tasks"):
        compare_targets([f"{copy}:base", str(copy)])


def test_names_of_arms(run, model, copy, tmp_path):
    twin = shutil.copytree(run, tmp_path / "deep" / run.name)
    names = [arm.name for arm in find_arms([f"{run}:base", f"{run}:practice", str(run)])]
    assert names == ["base", "practice", "final"]
    names = [arm.name for arm in find_arms([f"{model}:few-shot", str(model), str(copy), f"{copy}:warm-up"])]
    assert names == ["tiny:few-shot", "tiny", "copy", "copy:warm-up"]
    assert [arm.name for arm in find_arms([str(run), str(twin)])] == [str(run), str(twin)]
    with pytest.raises(ConfigError, match=r"final is named twice"):
        find_arms([str(run), f"{run}:final"])
    with pytest.raises(
        ConfigError, match=r"has no arm 'warmup'; it has base, few-shot, warm-up, practice, final"
    ):
        find_arms([f"{run}:warmup"])
    with pytest.raises(ConfigError, match=r"the model itself is"):
        find_arms([f"{model}:base"])
    with pytest.raises(ConfigError, match=r"name an environment with --env"):
        compare_targets([str(model)])


def test_settings_difference_has_the_differing_keys_alone(copy, run):
    change(copy / "recipe.resolved.yaml", "seed: 3", "seed: 4")
    change(copy / "recipe.resolved.yaml", "    beta: 0.0\n", "")
    record = json.loads((copy / "provenance.json").read_text())
    changed = record | {"torch": "1.0", "started": "long ago", "seed": 4}
    (copy / "provenance.json").write_text(json.dumps(changed))
    found = settings_difference({"a": RunFolder(run), "b": RunFolder(copy)})
    assert found == [
        {"key": "seed", "values": {"a": 3, "b": 4}},
        {"key": "stages.1.grpo.beta", "values": {"a": 0.0, "b": None}},
        {"key": "provenance: torch", "values": {"a": record["torch"], "b": "1.0"}},
    ]
    assert settings_difference({"a": RunFolder(run)}) == []
    assert settings_difference({}) == []


def test_settings_difference_folds_what_a_run_lacks(copy, run):
    recipe = yaml.safe_load((copy / "recipe.resolved.yaml").read_text("utf-8"))
    recipe["stages"][0] = {"name": "warm-up", "kto": {"steps": 40}}
    recipe["stages"][1:] = []
    (copy / "recipe.resolved.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    found = {
        row["key"]: row["values"] for row in settings_difference({"a": RunFolder(run), "b": RunFolder(copy)})
    }
    changed = {"demonstrations": 8, "epochs": 40, "learning_rate": 0.1}
    assert found["stages.0.sft"] == {"a": changed, "b": None}
    assert found["stages.0.kto"] == {"a": None, "b": {}}  # all as by default
    practice = {"name": "practice", "grpo.steps": 1, "grpo.tasks_per_step": 2, "grpo.group": 2}
    assert found["stages.1"] == {"a": {**practice, "sample.max_tokens": 6}, "b": None}
    assert not [key for key in found if key.startswith(("stages.0.sft.", "stages.0.kto.", "stages.1."))]


def test_a_run_whose_agents_ran_elsewhere_has_no_environment_of_its_own(copy, run):
    change(copy / "recipe.resolved.yaml", "env: bell.py:Bell\n", "")
    with pytest.raises(ConfigError, match="agents ran elsewhere does not say what to do: .*--env"):
        compare_targets([str(copy), f"{copy}:base"])
    assert len(told(compare_targets([str(copy), str(run)], tasks=2))) == 2


def test_the_same_prompt_many_times(run):
    found = repeat_task([f"{run}:base", str(run)], 2, times=70, temperature=1.0)  # more than go at once
    assert (found["task"], found["request"], found["times"]) == ("draw/test/2", "go", 70)
    base, final = found["arms"]
    assert (final["distinct"], final["commonest"], final["share"], final["success"]) == (1, "b", 1.0, 1.0)
    assert (final["n"], final["low"]) == (70, wilson(70, 70).low)
    assert base["distinct"] + base["unanswered"] > 10  # a random model: each time something else
    greedy = repeat_task([f"{run}:base"], 0, times=3, temperature=0.0)["arms"][0]
    assert greedy["distinct"] <= 1
    with pytest.raises(ConfigError, match="there is no test task 12"):
        repeat_task([str(run)], 12, times=1, temperature=1.0)


def test_a_stage_without_weights_cannot_be_asked(copy):
    shutil.rmtree(copy / "checkpoints/stages")
    with pytest.raises(ConfigError, match=r"warm-up cannot be asked: its weights are not kept"):
        repeat_task([f"{copy}:warm-up"], 0, times=2, temperature=1.0)
    found = repeat_task([str(copy)], 0, times=2, temperature=1.0)
    assert [arm["arm"] for arm in found["arms"]] == ["base", "few-shot", "final"]
    assert len(found["notes"]) == 2
