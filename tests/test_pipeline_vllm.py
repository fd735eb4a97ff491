"""A run that practises through a server of vLLM: recipe to report, weights in step, log-probs that agree."""

from __future__ import annotations

import json

import pytest

from renshu.errors import ConfigError, RenshuError
from renshu.models.load import load
from renshu.models.settings import ModelSettings
from renshu.pipeline.recipe import dump_recipe, read_recipe
from renshu.pipeline.train import train_recipe
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe
from vllm_kit import FakeVllm, serving

STAGES = [
    {
        "name": "practice",
        "grpo": {"steps": 2, "tasks_per_step": 1, "group": 4, "learning_rate": 0.005},
        "sample": {"max_tokens": 4, "temperature": 0.9},
    }
]
EVAL = {"tasks": 3, "dev_tasks": 2, "max_tokens": 4, "compare": []}


@pytest.fixture
def tiny(tmp_path):
    return save_tiny_model(tmp_path / "tiny", template=qwen_template())


def test_practice_through_a_server(tiny, tmp_path):
    told = FakeVllm(load(ModelSettings(name=str(tiny))).model, context=4096, details=True)
    with serving(told) as server:
        engine = {"kind": "vllm", "url": server.url, "folder": str(tmp_path / "adapters")}
        model = {"name": str(tiny), "adapter": {"rank": 2}}
        path = write_recipe(tmp_path, tiny, stages=STAGES, eval=EVAL, model=model, engine=engine)
        bell = (tmp_path / "bell.py").read_text()  # with a reward that differs between rollouts
        varied = bell.replace(
            "float(self.solved(trajectory))",
            "float(self.solved(trajectory) or sum(trajectory.messages[-1].content.encode()) % 7 / 8)",
        )
        (tmp_path / "bell.py").write_text(varied)
        run = train_recipe(read_recipe(str(path)), name="bell", base=tmp_path)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 2
    assert max(step["sampler_gap_max"] for step in metrics) < 1e-4  # both see the same weights at every step
    loads = [body["lora_name"] for path, body in told.log if path == "/v1/load_lora_adapter"]
    assert len(loads) == len(set(loads)) >= 3
    assert list(told.adapters) == loads[-1:]
    summary = json.loads((run / "summary.json").read_text())
    assert 0 < summary["tokens"]["computed"] < summary["tokens"]["naive"]
    assert (run / "report.html").is_file()


def test_a_server_that_dies_breaks_the_run_off(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("renshu.engines.vllm.Patience", _impatient)
    told = FakeVllm(load(ModelSettings(name=str(tiny))).model, context=4096)
    with serving(told) as server:
        engine = {"kind": "vllm", "url": server.url}
        model = {"name": str(tiny), "adapter": "lora"}
        path = write_recipe(tmp_path, tiny, stages=STAGES, eval=EVAL, model=model, engine=engine)
        answer = told.do_v1_load_lora_adapter
        left = [answer]
        told.do_v1_load_lora_adapter = lambda body: left.pop()(body) if left else (503, "gone")
        with pytest.raises(RenshuError, match="it answers 503: gone; given up after") as broken:
            train_recipe(read_recipe(str(path)), name="bell", base=tmp_path)
    assert any("go on with: renshu resume" in note for note in broken.value.__notes__)


def _impatient(**settings):
    from renshu.engines.openai_client import Patience

    return Patience(**{**settings, "seconds": 0.3}, connecting=0.1, pause=0.05)


def test_recipes_that_a_server_cannot_play_are_refused(tiny, tmp_path):
    engine = {"kind": "vllm"}
    bent = [{**STAGES[0], "sample": {"temperature": 0.9, "top_p": 0.9}}]
    path = write_recipe(tmp_path, tiny, stages=bent, engine=engine)
    with pytest.raises(
        ConfigError, match=r"stage 'practice': vLLM tells no log-probs of a temperature other"
    ):
        read_recipe(str(path))
    path = write_recipe(tmp_path, tiny, stages=STAGES, engine={"kind": "native", "sync": "adapter"})
    with pytest.raises(ConfigError, match="sync: only an engine of kind vllm has a server"):
        read_recipe(str(path))
    path = write_recipe(tmp_path, tiny, stages=STAGES, engine=engine)
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(dump_recipe(read_recipe(str(path))))
    assert read_recipe(str(resolved)) == read_recipe(str(path))
