"""`renshu compare`, `eval --json` and `report` as a person or a script uses them."""

import json
from pathlib import Path

import pytest

from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.train import train_recipe
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe

STAGES = [{"name": "warm-up", "sft": {"demonstrations": 8, "learning_rate": 0.1, "epochs": 40}}]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    model = save_tiny_model(folder / "tiny", template=qwen_template())
    path = write_recipe(folder, model, stages=STAGES, eval={"tasks": 9, "dev_tasks": 2, "max_tokens": 6})
    return train_recipe(read_recipe(str(path)), name="bell", base=folder)


def cells(out: str, first: str) -> list[list[str]]:
    """The rows of tables that begin with `first`, cut at wide gaps."""
    rows = [line for line in out.splitlines() if line.startswith(first)]
    return [[cell for cell in (part.strip() for part in row.split("  ")) if cell] for row in rows]


def test_compare_prints_tables_and_a_verdict(run, call):
    code, out, error = call("compare", run, "--price-in", 1, "--price-out", 4)
    assert code == 0, error
    lines = [json.loads(line) for line in (run / "evaluation/final.jsonl").read_text().splitlines()]
    prompt = lines[0]["tokens"]["prompt"]
    assert out.startswith("Bell: 9 test tasks, greedy; points and p against base\n")
    success, spent = cells(out, "final ")[:2]
    # 9 gained of 9; two of the three other arms are as good: 3 * 2/2**9. Wilson: 9 / (9 + 3.8415).
    assert success == ["final", "100.0 %", "70.1 to 100.0 %", "9", "100", "57.7 to 100", "p = 0.012"]
    assert spent == ["final", str(prompt), "2.0", "–", f"${(prompt + 8) / 1000:.3g}"]
    assert cells(out, "base ")[0] == ["base", "0.0 %", "0.0 to 29.9 %", "9"]
    assert (
        "final (same weights as warm-up) solves 100 points more than base (95 % interval 57.7 to 100; "
        "p = 0.012, corrected for several arms).\n" in out
    )
    assert "few-shot alone: no proven difference from base" in out
    assert f"page: {run / 'compare.html'}\n" in error
    page = (run / "compare.html").read_text("utf-8")
    assert "<script" not in page
    assert "final (same weights as warm-up) solves 100 points more than base" in page
    assert page.count("<svg") == 2


def test_compare_as_json(run, call, tmp_path):
    page = tmp_path / "page.html"
    code, out, error = call(
        "compare", f"{run}:base", run, "--tasks", 4, "--samples", 2, "--html", page, "--json"
    )
    assert (code, error) == (0, f"page: {page}\n")
    found = json.loads(out)
    assert [arm["arm"] for arm in found["arms"]] == ["base", "final"]
    assert (found["tasks"], found["samples"]) == (4, {"k": 2, "temperature": 1.0})
    assert found["arms"][1]["samples"]["pass_hat"] == [1.0, 1.0]
    assert found["arms"][1]["against"]["p_holm"] == 0.125
    assert "2 tries of every task at temperature 1.0" in page.read_text("utf-8")
    assert not (run / "evaluation/samples").exists()  # a comparison leaves the run as it is


def test_compare_asks_the_same_prompt_many_times(run, call):
    code, out, error = call("compare", f"{run}:final", "--task", 1, "--times", 20)
    assert code == 0, error
    assert out.startswith("draw/test/1: go\nasked 20 times, temperature 1\n")
    assert cells(out, "final ") == [["final", "100.0 %", "83.9 to 100.0 %", "20", "1 of 20", "b", "100.0 %"]]
    code, out, _ = call("compare", f"{run}:final", "--task", 1, "--times", 3, "--temperature", 0, "--json")
    assert (json.loads(out)["temperature"], json.loads(out)["arms"][0]["n"]) == (0.0, 3)


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (["--task", "1", "--samples", "2"], 2, "--samples would do nothing here: --task asks one task"),
        (["--times", "3"], 2, "--times would do nothing here"),
        (["--temperature", "0.5"], 2, "--temperature would do nothing here"),
        (["--samples", "2", "--temperature", "0"], 1, "temperature: Input should be greater than 0"),
        (["--price-in", "inf", "--price-out", "1"], 2, "inf is no number to reckon with"),
        (["--price-hour", "nan"], 2, "Input should be greater than or equal to 0"),
        (["--samples", "2", "--temperature", "nan"], 2, "Input should be greater than or equal to 0"),
        (["--price-in", "1"], 1, "give both --price-in and --price-out"),
        (["--price-in", "1", "--price-out", "1", "--price-hour", "1"], 1, "not both"),
    ],
)
def test_options_that_would_do_nothing_are_refused(run, call, options, code, reason):
    told, out, error = call("compare", run, *options)
    assert (told, out) == (code, "")
    assert reason in " ".join(error.replace("│", " ").split())


def test_eval_as_json_says_what_was_measured_and_how(run, call):
    code, out, error = call("eval", run, "--split", "dev", "--tasks", 3, "--json")
    assert code == 0, error
    found = json.loads(out)
    assert (found["success"], found["n"]) == (1.0, 3)
    how = {
        key: found[key]
        for key in ("model", "environment", "split", "temperature", "seed", "max_tokens", "at_once")
    }
    assert how == {
        "model": str(run / "checkpoints/final"),
        "environment": "Bell",
        "split": "dev",
        "temperature": 0.0,
        "seed": 3,
        "max_tokens": 6,
        "at_once": 64,
    }
    line = json.loads((run / "evaluation/final.jsonl").read_text().splitlines()[0])
    assert found["tokens"] == {"prompt": line["tokens"]["prompt"], "sampled": 2.0}
