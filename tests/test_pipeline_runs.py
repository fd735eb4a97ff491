"""The list of runs: states, filters, order; what is damaged is set aside."""

import json

import pytest

from renshu.errors import ConfigError
from renshu.pipeline.run_folder import RunFolder
from renshu.pipeline.runs import RunLine, chosen, list_runs
from renshu.pipeline.stand import STATE


def write_run(
    folder, name, *, env="flights", seed=0, started="2026-01-02T03:04:05+00:00", success=None, model="m"
):
    run = RunFolder(folder / name)
    stages = "stages: [{name: practice, grpo: {steps: 9}}]"
    run.write_text("recipe.resolved.yaml", f"env: {env}\nseed: {seed}\nmodel: {{name: {model}}}\n{stages}\n")
    run.write_json("provenance.json", {"recipe": name.split("-")[0], "started": started})
    if success is not None:
        arms = [
            {"arm": "base", "success": 0.0, "low": 0.0, "high": 0.1},
            {
                "arm": "final",
                "success": success,
                "low": round(success - 0.05, 2),
                "high": round(success + 0.05, 2),
            },
        ]
        run.write_json("summary.json", {"recipe": "flights", "evaluation": {"flights": {"arms": arms}}})
    return run


def write_checkpoint(run, step, **state):
    state = dict.fromkeys(STATE) | state
    place = run.file(f"checkpoints/checkpoint-{step}/state.json")
    place.write_text(json.dumps(state))
    (place.parent / "complete.json").write_text(json.dumps({"state.json": place.stat().st_size}))


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path, "flights-0", success=0.9)
    write_run(tmp_path, "flights-1", seed=1, success=0.5, started="2026-01-01T00:00:00+00:00")
    broken = write_run(tmp_path, "repairs-0", env="repairs", model="embedded")
    write_checkpoint(broken, 10, stage="practice", stage_step=10, played=[])
    write_checkpoint(broken, 9, stage="practice", stage_step=9, played=[])
    failed = write_run(tmp_path, "repairs-1", env="repairs")
    write_checkpoint(failed, 24, stage=None, stage_step=0, played=[{"name": "warm-up"}])
    failed.write_json("failure.json", {"error": "OSError: full"})
    write_run(tmp_path, "repairs-2", env="repairs")
    damaged = write_run(tmp_path, "damaged-0")
    damaged.write_text("summary.json", "[")
    (tmp_path / "notes").mkdir()
    return tmp_path


def names(runs):
    return [run.path.rpartition("/")[2] for run in runs]


def test_every_state_is_told(folder):
    listing = list_runs(folder)
    assert {run.path.rpartition("/")[2]: (run.state, run.detail) for run in listing.runs} == {
        "flights-0": ("complete", ""),
        "flights-1": ("complete", ""),
        "repairs-0": ("broken off", "at step 10 of practice"),
        "repairs-1": ("failed", "after warm-up: OSError: full"),
        "repairs-2": ("broken off", "before its first checkpoint"),
    }
    (sentence,) = listing.damaged
    assert sentence.startswith(f"{folder / 'damaged-0'} cannot be read: ")


def test_a_line_says_what_was_trained_and_what_came_of_it(folder):
    (line,) = list_runs(folder / "flights-0").runs
    assert line == RunLine(
        path=str(folder / "flights-0"),
        recipe="flights",
        env="flights",
        model="m",
        seed=0,
        state="complete",
        detail="",
        started="2026-01-02T03:04:05+00:00",
        base=0.0,
        success=0.9,
        low=0.85,
        high=0.95,
    )


def test_a_live_run_is_running_and_held_until_it_is_closed(folder):
    run = RunFolder.reopen(folder / "repairs-0")
    run.append_lines("metrics.jsonl", [{"stage": "practice", "step": s, "steps": 9} for s in (1, 2)])
    with (folder / "repairs-0/metrics.jsonl").open("a") as file:
        file.write('{"stage": "prac')
    (line,) = list_runs(folder / "repairs-0").runs
    assert (line.state, line.detail) == ("running", "at step 2 of 9 of practice")
    run.close()
    assert list_runs(folder / "repairs-0").runs[0].state == "broken off"


def test_filters_and_order(folder):
    runs = list_runs(folder).runs
    assert names(chosen(runs, env="flight")) == ["flights-1", "flights-0"]
    assert names(chosen(runs, env="flight", sort="name")) == ["flights-0", "flights-1"]
    assert names(chosen(runs, sort="success"))[-2:] == ["flights-1", "flights-0"]
    assert names(chosen(runs, model="embed")) == ["repairs-0"]
    assert names(chosen(runs, recipe="repairs", state="failed")) == ["repairs-1"]
    bounds = {
        ">0.5": ["flights-0"],
        ">=50%": ["flights-1", "flights-0"],
        "0.9": ["flights-0"],
        "<.6": ["flights-1"],
    }
    for bound, expected in bounds.items():
        assert names(chosen(runs, success=bound)) == expected, bound


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": "done"}, "state 'done': expected one of complete, running, broken off, failed"),
        ({"sort": "luck"}, "sort 'luck': expected one of date, name, success"),
        ({"success": "high"}, "success 'high': expected a bound such as"),
    ],
)
def test_what_is_no_filter_is_said(options, message):
    with pytest.raises(ConfigError, match=message):
        chosen([], **options)


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        list_runs(tmp_path / "nowhere")
