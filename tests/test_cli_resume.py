"""`renshu train` that is interrupted, `renshu runs`, `renshu resume`."""

import json
import os
import signal

from renshu.cli.show import TerminalWatcher
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe


def test_an_interrupted_run_says_how_to_go_on_and_does(tmp_path, call, monkeypatch):
    model = save_tiny_model(tmp_path / "model", template=qwen_template())
    stages = [{"name": "practice", "grpo": {"steps": 3, "tasks_per_step": 1, "group": 2}}]
    recipe = write_recipe(tmp_path, model, stages=stages, eval={"tasks": 2, "dev_tasks": 1, "max_tokens": 4})
    run = tmp_path / "run-bell-3"
    step = TerminalWatcher.stage_step

    def interrupted(self, stage, snapshot, dev_success):
        step(self, stage, snapshot, dev_success)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TerminalWatcher, "stage_step", interrupted)
        code, out, error = call("train", recipe)
    assert (code, out) == (130, "")
    assert "! the run ends after this step; Ctrl-C again ends it at once" in error
    assert error.endswith(
        f"interrupted\nkept: the run at step 1 of practice; go on with: renshu resume {run}\n"
    )

    code, out, error = call("runs", tmp_path, "--json")
    (line,) = json.loads(out)
    assert (line["recipe"], line["state"], line["detail"]) == ("bell", "broken off", "at step 1 of practice")

    code, out, error = call("resume", run, "--json")
    assert code == 0, error
    assert f"! {run} goes on at step 1 of practice" in error.replace("\n", "")
    assert json.loads(out)["stages"][0]["steps"] == 3

    code, out, error = call("resume", run)
    assert (code, error) == (1, f"error: {run} is complete: there is nothing to resume\n")
    code, out, error = call("runs", tmp_path, "--state", "complete")
    assert code == 0
    assert "0% → 0% (0 to 66)" in out
    assert call("runs", tmp_path, "--state", "failed")[1] == "no runs\n"
