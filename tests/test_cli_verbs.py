"""The command line as a person or a script uses it: in its own process where that matters, else by `main`."""

import io
import json
import os
import resource
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from renshu.cli import main
from renshu.pipeline.recipe import built_in_recipes, read_recipe
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe

RENSHU = Path(sys.executable).parent / "renshu"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"), template=qwen_template())


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, model):
    return write_recipe(
        tmp_path_factory.mktemp("recipe"),
        model,
        stages=[
            {"name": "warm-up", "sft": {"demonstrations": 8, "learning_rate": 0.1, "epochs": 40}},
            {"name": "practice", "grpo": {"steps": 1, "tasks_per_step": 2, "group": 2}},
        ],
        eval={"tasks": 6, "dev_tasks": 2, "max_tokens": 6},
    )


@pytest.fixture(scope="module")
def trained(recipe):
    """What `renshu train RECIPE --json` printed: standard output, standard error."""
    out, error = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr(sys, "argv", ["renshu", "train", str(recipe), "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code, error.getvalue()
    return out.getvalue(), error.getvalue()


def test_help_is_fast_and_lists_the_verbs():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([RENSHU, "--help"], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    for verb in ("demo", "train", "eval", "chat", "report", "models"):
        assert f"\n  {verb} " in done.stdout
    # Processor time, so that the test says the same on a busy machine.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_train_prints_the_summary_as_json_and_progress_elsewhere(trained, recipe):
    out, error = trained
    summary = json.loads(out)
    assert summary == json.loads((recipe.parent / "run-bell-3/summary.json").read_text("utf-8"))
    assert "base: 0% of 6 tasks solved (95 % interval 0% to 39%)" in error
    assert "warm-up  20/20  loss " in error
    assert "Traceback" not in error


def test_errors_are_sentences_with_exit_code_1(trained, recipe, call):
    code, out, error = call("train", recipe)
    assert (code, out) == (1, "")
    assert error.startswith("error: ")
    assert "holds a run: pass --overwrite" in error
    code, _, error = call("train", "nonsense")
    assert code == 1
    assert "neither a recipe file (*.yaml) nor built in (flights, flights-dpo, flights-hack, " in error


def test_wrong_usage_is_exit_code_2(call):
    assert call("train")[0] == 2
    assert call("train", "flights", "--nonsense")[0] == 2
    assert call("nonsense")[0] == 2


def test_an_interrupt_is_exit_code_130(call, monkeypatch):
    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("renshu.report.build_report", interrupt)
    code, _, error = call("report", "anywhere")
    assert (code, "Traceback" in error) == (130, False)


def test_eval_measures_the_kept_model_in_its_own_environment(trained, recipe, call):
    run = recipe.parent / "run-bell-3"
    code, out, _ = call("eval", run, "--json")  # tasks and tokens as in the run's recipe
    assert code == 0
    (*_, final) = json.loads(trained[0])["evaluation"]["Bell"]["arms"]
    measured = json.loads(out)
    same = {key: measured[key] for key in final}
    assert same | {"arm": "final", "p_vs_base": None} == final | {"p_vs_base": None}
    assert measured["success"] == 1.0


def test_eval_of_a_bare_model_needs_an_environment(model, call):
    code, _, error = call("eval", model)
    assert code == 1
    assert "name an environment with --env" in error
    code, out, error = call("eval", model, "--env", "flights", "--tasks", "2", "--max-tokens", "4")
    assert "solved" not in error  # told once
    assert code == 0
    assert "0% of 2 tasks solved (95 % interval 0% to 66%)" in out


def test_chat_answers_and_ends(trained, recipe, call):
    run = recipe.parent / "run-bell-3"
    code, out, _ = call("chat", run, "--message", "go", "--max-tokens", "12")
    assert code == 0
    assert out.startswith("The task: go\n agent b\n")
    code, _, error = call("chat", run, "--task", "99", "--message", "go")
    assert (code, error) == (1, "error: there is no test task 99: the last one is 11\n")


FUNCTIONS = '''
from renshu import Environment, Task, Tasks

def look(key: str) -> str:
    """Look."""
    return "7"

def right(trajectory) -> float:
    return 1.0

tasks = [Task("a/0", {"prompt": "What is it?"})]
Free = Environment.from_functions(
    tools=[look], rewards=[right], success=right, tasks=Tasks(tasks, tasks, tasks), system="Be brief."
)
Bare = Environment.from_functions(tools=[look], rewards=[right])
'''


def test_chat_opens_environments_as_they_open_themselves(model, call, tmp_path):
    (tmp_path / "free.py").write_text(FUNCTIONS, encoding="utf-8")
    code, out, error = call(
        "chat", model, "--env", f"{tmp_path}/free.py:Free", "--message", "hello", "--max-tokens", "2"
    )
    assert code == 0, error
    assert out.startswith("The task: What is it?\n")
    code, _, error = call("chat", model, "--env", f"{tmp_path}/free.py:Bare", "--message", "hello")
    assert (code, "FunctionEnvironment has no tasks" in error) == (1, True)
    code, out, error = call("chat", model, "--message", "hello", "--max-tokens", "2")  # no environment
    assert code == 0, error
    assert "The task" not in out


def test_report_is_written_again(trained, recipe, call):
    run = recipe.parent / "run-bell-3"
    before = (run / "report.html").read_text("utf-8")
    (run / "report.html").unlink()
    code, out, _ = call("report", run)
    assert (code, out.strip()) == (0, str(run / "report.html"))
    assert (run / "report.html").read_text("utf-8") == before
    code, _, error = call("report", recipe.parent)
    assert code == 1
    assert "holds no run: there is no recipe.resolved.yaml in it" in error


def test_models_list(call, monkeypatch, tmp_path):
    monkeypatch.setenv("RENSHU_CACHE", str(tmp_path))
    code, out, _ = call("models", "list", "--json")
    rows = {row["name"]: row["present"] for row in json.loads(out)}
    assert (code, rows) == (0, {"embedded": True, "smollm2-135m": False})
    code, _, error = call("models", "get", "nonsense")
    assert code == 1
    assert "known: smollm2-135m" in error
    assert call("models", "get", "smollm2-135m", "--source", "moon")[0] == 1


@pytest.mark.parametrize("name", built_in_recipes())
def test_built_in_recipes_are_valid(name):
    from renshu.pipeline.environments import load_environment
    from renshu.pipeline.preflight import require_playable

    recipe = read_recipe(name)
    require_playable(load_environment(recipe.env), recipe)


def test_demo_tells_its_story(model, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["eval.tasks=3", "eval.dev_tasks=2", "eval.max_tokens=8", "stages.0.sft.demonstrations=8"]
    small += ["stages.0.sft.epochs=1", "stages.1.grpo.steps=2", "stages.1.grpo.group=2"]
    small += ["stages.1.sample.max_tokens=8"]
    code, out, error = call("demo", f"model.name={model}", *small)
    assert code == 0, error
    story = ["before", "not solved", "training", "base: 0% of 3", "the same task afterwards", "verdict"]
    places = [out.index(text) for text in [*story, "No proven gain"]]
    assert places == sorted(places)
    for text in ("tokens were computed", "report: runs/demo-0/report.html", "renshu chat runs/demo-0"):
        assert text in out
    assert (tmp_path / "runs/demo-0/report.html").is_file()
    code, out, _ = call("demo", f"model.name={model}", *small, "--hack")
    assert code == 0
    assert "Practice moved reward from 0.00 to 0.00 and success from 0% to 0%." in out
    assert (tmp_path / "runs/demo-hack-0/summary.json").is_file()


@pytest.mark.parametrize("words", [["doctor"], ["new", "desk"], ["runs"], ["train", "flights"]])
def test_a_package_that_cannot_be_loaded_is_a_sentence(call, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    for name in (
        "renshu.pipeline.doctor",
        "renshu.pipeline.new",
        "renshu.pipeline.runs",
        "renshu.pipeline.train",
    ):
        monkeypatch.setitem(sys.modules, name, None)
    code, out, err = call(*words)
    assert (code, out) == (1, "")
    assert err.startswith("error: a package cannot be loaded: import of renshu.pipeline.")
    assert err.endswith("install it, or Renshu with all it needs: pip install --force-reinstall renshu\n")


def test_errors_of_the_system_are_sentences(call, monkeypatch):
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device", "/full/report.html")

    monkeypatch.setattr("renshu.report.build_report", full)
    code, _, error = call("report", "anywhere")
    assert (code, error) == (
        1,
        "error: /full/report.html: No space left on device; free space, or choose another place\n",
    )


def test_a_terminal_without_the_character_is_written_to(tmp_path):
    command = [RENSHU, "report", str(tmp_path / "練習")]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "latin-1"})
    assert done.returncode == 1
    assert b"\\u7df4\\u7fd2 holds no run" in done.stderr


@pytest.mark.parametrize("data", [None, b"", b"\xff\xfe\n"])
def test_what_nobody_could_have_typed_is_no_reason_to_fail(call, monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", None if data is None else io.TextIOWrapper(io.BytesIO(data), "utf-8"))
    code, out, err = call("play", "flights")
    assert (code, err) == (0, "")
    assert ("success: no" if data else "left before the end") in out
