"""A whole run with a tiny model: it learns, and the run folder says so in numbers."""

import json
import re
from pathlib import Path

import pytest

from chat_tokenizers import byte_level, template
from renshu.chat import ChatFormat
from renshu.data.dialogues import Dialogues, rows_of
from renshu.errors import ConfigError
from renshu.pipeline.recipe import Recipe, read_recipe
from renshu.pipeline.run_folder import RunFolder
from renshu.pipeline.train import train_recipe
from renshu.pipeline.watch import Watcher
from renshu.types import Message
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import ECHO, write_recipe


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"), template=qwen_template())


@pytest.fixture(scope="module")
def run(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("run")
    path = write_recipe(folder, model)
    return train_recipe(read_recipe(str(path)), name="bell", base=folder)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_summary_has_exactly_the_agreed_shape(run):
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert list(summary) == ["recipe", "seed", "seconds", "stages", "evaluation", "tokens"]
    assert (summary["recipe"], summary["seed"]) == ("bell", 3)
    stages = [(s["name"], s["algorithm"], s["steps"]) for s in summary["stages"]]
    assert stages == [("warm-up", "sft", 24), ("practice", "grpo", 5)]
    assert all(list(stage) == ["name", "algorithm", "steps", "seconds"] for stage in summary["stages"])
    assert list(summary["evaluation"]) == ["Bell"]
    arms = summary["evaluation"]["Bell"]["arms"]
    assert [arm["arm"] for arm in arms] == ["base", "few-shot", "warm-up", "practice", "final"]
    keys = ["arm", "success", "low", "high", "n", "unscored", "reward", "p_vs_base"]
    assert all(list(arm) == keys for arm in arms)
    assert list(summary["tokens"]) == ["computed", "naive"]
    assert 0 < summary["tokens"]["computed"] < summary["tokens"]["naive"]


def test_the_agent_learned_and_the_numbers_are_right(run):
    arms = {a["arm"]: a for a in json.loads((run / "summary.json").read_text())["evaluation"]["Bell"]["arms"]}
    assert arms["base"]["success"] == arms["few-shot"]["success"] == arms["warm-up"]["success"] == 0.0
    assert arms["warm-up"]["p_vs_base"] == 1.0
    assert arms["base"]["p_vs_base"] is None
    z2 = 1.959963984540054**2
    assert arms["base"]["high"] == pytest.approx(z2 / (12 + z2))
    for name in ("practice", "final"):
        assert arms[name]["success"] == arms[name]["reward"] == 1.0
        assert arms[name]["low"] == pytest.approx(12 / (12 + z2))
        assert arms[name]["p_vs_base"] == pytest.approx(2 / 2**12)  # 12 gained, none lost
        assert (arms[name]["n"], arms[name]["unscored"]) == (12, 0)


def test_run_folder_is_complete(run):
    names = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    expected = {"recipe.resolved.yaml", "provenance.json", "metrics.jsonl", "summary.json", "report.html"}
    expected |= {f"evaluation/{arm}.jsonl" for arm in ("base", "few-shot", "warm-up", "practice", "final")}
    expected |= {f"trajectories/practice/step-{step:05}.jsonl" for step in range(1, 6)}
    expected |= {"trajectories/samples.jsonl", "checkpoints/final/model.safetensors"}
    assert expected <= names
    assert not [name for name in names if name.endswith((".tmp", ".bin", ".pt", ".pkl"))]


def test_metrics_have_a_line_a_step_and_looks_where_due(run):
    rows = lines(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [*range(1, 25), 1, 2, 3, 4, 5]
    practice = [row for row in rows if row["stage"] == "practice"]
    assert [row["abandoned_tools"] for row in practice] == [0] * 5
    assert ["dev_success" in row for row in practice] == [False, True, False, True, True]
    assert [row["sequences"] for row in practice] == [{"": 16}] * 5
    assert rows[23]["dev_success"] == 0.0
    gaps = [row["sampler_gap_max"] for row in practice if "sampler_gap_max" in row]
    assert gaps
    assert all(gap < 1e-3 for gap in gaps)  # the engine samples from the weights as they are, at every step
    # 6 of 16 demonstrations say "b", the others "c", then all end: half the entropy of (3/8, 5/8) a token.
    assert rows[0]["loss"] > 4
    assert rows[23]["loss"] == pytest.approx(0.6616 / 2, abs=0.05)
    assert practice[0]["reward"] < 0.5 < 0.8 < practice[4]["reward"]


def test_trajectories_hold_all_tokens(run):
    rows = lines(run / "trajectories/practice/step-00001.jsonl")
    assert len(rows) == 16
    assert len({row["task"] for row in rows}) == 2
    for row in rows:
        (prompt, reply), *others = row["paths"]
        assert not others
        assert (prompt["sampled"], reply["sampled"]) == (False, True)
        assert len(reply["ids"]) == len(reply["logprobs"])
        assert all(value <= 0 for value in reply["logprobs"])


def test_samples_spell_the_tokens_for_the_report(run):
    rows = lines(run / "trajectories/samples.jsonl")
    prompt = rows[0]["segments"][0]
    assert "".join(prompt["pieces"]).endswith("<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n")
    assert ["b", "<|im_end|>"] in [row["segments"][1]["pieces"] for row in rows]


def test_few_shot_arm_sees_its_examples(run):
    (row, *_) = lines(run / "evaluation/few-shot.jsonl")
    said = [(m["role"], m["content"]) for m in row["messages"]]
    assert said[:3] == [("user", "go"), ("assistant", "b"), ("user", "go")]
    assert lines(run / "evaluation/base.jsonl")[0]["messages"][0]["content"] == "go"


def test_resolved_recipe_reads_back_as_the_same(run, tmp_path):
    resolved = read_recipe(str(run / "recipe.resolved.yaml"))
    assert resolved.stages[1].grpo.clip_low == 0.2  # a default, written out
    assert "clip_low: 0.2" in (run / "recipe.resolved.yaml").read_text()
    again = Recipe.from_dict(resolved.model_dump(exclude_none=True))
    assert again == resolved


def test_provenance_names_versions_and_hashes(run):
    import hashlib

    record = json.loads((run / "provenance.json").read_text("utf-8"))
    assert record["torch"].startswith("2.")
    assert record["source bell.py"] == hashlib.sha256(ECHO.encode()).hexdigest()
    assert record["threads"] >= 1


def test_same_seed_gives_the_same_run(run, tmp_path, model):
    path = write_recipe(tmp_path, model)
    again = train_recipe(read_recipe(str(path)), name="bell", base=tmp_path)
    first, second = (lines(folder / "metrics.jsonl") for folder in (run, again))
    drop = {"seconds_source", "seconds_train"}
    assert [{k: v for k, v in row.items() if k not in drop} for row in first] == [
        {k: v for k, v in row.items() if k not in drop} for row in second
    ]
    other = write_recipe(tmp_path, model, seed=4)
    other_run = train_recipe(read_recipe(str(other)), name="bell", base=tmp_path)
    assert lines(other_run / "metrics.jsonl")[-3]["reward"] != first[-3]["reward"]


def test_report_is_one_offline_page(run):
    page = (run / "report.html").read_text("utf-8")
    assert len(page) < 1_000_000
    assert "<script" not in page
    assert re.findall(r".*http.*", page) == ["  url: http://127.0.0.1:8000"]  # text of the settings: no link
    for text in (
        "Training paid",
        "100% of 12 held-out Bell tasks",
        "<b>b</b><b>&lt;|im_end|&gt;</b>",
        "0.00049",
    ):
        assert text in page
    assert page.count("<svg") >= 4


def test_an_existing_run_is_not_overwritten_unasked(run):
    with pytest.raises(ConfigError, match="holds a run: pass --overwrite"):
        RunFolder.create(run)
    assert (run / "summary.json").is_file()


def test_data_left_out_is_told(tmp_path, model):
    path = write_recipe(
        tmp_path,
        model,
        stages=[
            {"name": "own", "sft": {"data": "demos.jsonl", "max_length": 200}},
            {"name": "few", "sft": {"demonstrations": 100}},
        ],
        eval={"tasks": 2, "dev_tasks": 1, "max_tokens": 4},
    )
    turns = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "b" * 300}]
    (tmp_path / "demos.jsonl").write_text(f"{json.dumps({'messages': turns})}\nnonsense\n")
    source = (tmp_path / "bell.py").read_text()
    rows = [{"split": split, "id": split} for split in ("train", "dev", "test", "moon")]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tasks = f"Tasks.from_jsonl({str(tmp_path / 'tasks.jsonl')!r}, split_by='split')"
    (tmp_path / "bell.py").write_text(
        source.replace("Tasks.generated(draw, train=64, dev=6, test=12)", tasks)
    )
    heard = []

    class Ear(Watcher):
        def noted(self, text):
            heard.append(text)

    folder = train_recipe(read_recipe(str(path)), name="bell", base=tmp_path, watcher=Ear())
    assert heard == [
        "tasks: rows set aside (unknown split: 1)",
        "stage own: lines of demos.jsonl set aside (not JSON: 1)",
        "stage own: rows cut at 200 tokens: 1 of 1",
        "stage few: demonstrations: 1 instead of 100, one for each training task",
    ]
    assert [row["text"] for row in lines(folder / "findings.jsonl")] == heard


def test_a_dialogue_is_a_row_for_each_path_where_the_template_drops_thoughts():
    format = ChatFormat(byte_level("<|im_end|>"), template("qwen3"), "fork")
    asked, thought = Message("user", "go"), Message("assistant", "a", reasoning="hm")
    rows = rows_of(Dialogues([([asked, thought, asked, thought], [])] * 2), format)
    assert rows == [*format.supervised_rows([asked, thought, asked, thought])] * 2
    assert len(rows) == 4


def test_a_folder_of_something_else_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="choose another place"):
        RunFolder.create(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").is_file()


def test_adapter_run_keeps_an_adapter_that_loads(tmp_path, model):
    from renshu.pipeline.measure import measure

    path = write_recipe(tmp_path, model, model={"name": str(model), "adapter": {"rank": 4}})
    recipe = read_recipe(
        str(path), ["stages.0.sft.careful=1.0", "stages.1.grpo.steps=1", "eval.compare=[base]"]
    )
    folder = train_recipe(recipe, name="bell", base=tmp_path)
    assert (folder / "checkpoints/final/adapter_model.safetensors").is_file()
    assert not (folder / "checkpoints/final/model.safetensors").exists()
    measure(str(folder), tasks=12, max_tokens=6, log=tmp_path / "again.jsonl")
    kept, again = lines(folder / "evaluation/final.jsonl"), lines(tmp_path / "again.jsonl")
    assert kept == again
    assert kept != lines(folder / "evaluation/base.jsonl")
