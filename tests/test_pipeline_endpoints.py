"""Models behind an endpoint as arms of a comparison: measured, priced, kept, and never paid for twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from api_kit import listening, said
from renshu.engines.openai_client import Patience
from renshu.errors import ConfigError, EngineError
from renshu.evaluation import Prices, Tries, wilson
from renshu.models import ModelSettings
from renshu.models.load import load
from renshu.pipeline.arms import find_arms
from renshu.pipeline.compare import compare_targets, repeat_task
from renshu.pipeline.endpoints import Access, Address
from renshu.pipeline.finished import find_target
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.train import train_recipe
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import ECHO, write_recipe

KEY = "sk-very-secret-0123"


@pytest.fixture
def bell(tmp_path, monkeypatch):
    """The environment's name, in a folder of its own that is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bell.py").write_text(ECHO, encoding="utf-8")
    return "bell.py:Bell"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    model = save_tiny_model(folder / "tiny", template=qwen_template())
    stages = [{"name": "warm-up", "sft": {"demonstrations": 8, "learning_rate": 0.1, "epochs": 40}}]
    path = write_recipe(folder, model, stages=stages, eval={"tasks": 9, "dev_tasks": 2, "max_tokens": 6})
    return train_recipe(read_recipe(str(path)), name="bell", base=folder)


def tidy(text):
    """Every second task right; tokens as told."""
    numbers = iter(range(10**6))
    return lambda path, body: said(text if next(numbers) % 2 == 0 else "c", usage=(100, 4, 60))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def test_an_arm_beside_those_of_a_run(run, tmp_path, call):
    with listening(tidy("b")) as server:
        target = f"api:gpt/x@{server.url}/v1"
        options = (
            "--price",
            "gpt/x=2.5/10/1.25",
            "--price-in",
            1,
            "--price-out",
            4,
            "--keep",
            tmp_path / "kept",
        )
        options += ("--api-at-once", 1, "--html", tmp_path / "page.html", "--json")
        code, out, error = call("compare", f"{run}:base", run, target, *options)
        assert code == 0, error
    base, final, api = json.loads(out)["arms"]
    assert [arm["arm"] for arm in (base, final, api)] == [f"{run.name}:base", run.name, "gpt/x"]
    assert (api["success"], api["n"]) == (5 / 9, 9)
    assert (api["low"], api["high"]) == (wilson(5, 9).low, wilson(5, 9).high)
    assert (api["against"]["gained"], api["against"]["lost"], api["against"]["n"]) == (5, 0, 9)
    assert api["against"]["p"] == 2 * 0.5**5  # exact McNemar: all five of five discordant pairs
    assert {k: api["tokens"][k] for k in ("prompt", "sampled", "cached")} == {
        "prompt": 100.0,
        "sampled": 4.0,
        "cached": 60.0,
    }
    assert api["cost_per_1000"] == pytest.approx((40 * 2.5 + 60 * 1.25 + 4 * 10) / 1000)
    assert final["cost_per_1000"] == pytest.approx((final["tokens"]["prompt"] + 2 * 4) / 1000)
    assert api["seconds"] > 0
    body = server.bodies[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("gpt/x", 0.0, 6)
    assert body["messages"] == [{"role": "user", "content": "go"}]
    assert len(server.asked) == 9
    assert "gpt/x" in (tmp_path / "page.html").read_text("utf-8")


def test_what_was_paid_for_is_not_asked_again(run, call):
    with listening(tidy("b")) as server:
        target = f"api:m@{server.url}/v1"
        first = compare_of(call, run, target)
        (path,) = files(run / "comparison")
        assert len(server.asked) == 9
        second = compare_of(call, run, target)
        assert len(server.asked) == 9
        more = compare_of(call, run, target, "--samples", 2)
        assert len(server.asked) == 9 + 18
    api, again = first["arms"][1], second["arms"][1]
    assert again == api  # its seconds, too: they are on file
    assert second["notes"][-1] == f"m: 9 episodes were read from {path}; remove it to ask again"
    assert more["arms"][1]["samples"]["n"] == 9
    assert {body["temperature"] for body in server.bodies[9:]} == {1.0}
    shutil.rmtree(run / "comparison")


def compare_of(call, run, target, *options):
    code, out, error = call("compare", run, target, "--json", *options)
    assert code == 0, error
    return json.loads(out)


def test_conditions_that_differ_are_asked_anew(bell, tmp_path):
    with listening(lambda path, body: said("b")) as server:
        target = f"api:m@{server.url}/v1"
        compare_targets([target], env=bell, tasks=3)
        compare_targets([target], env=bell, tasks=4)  # one more
        assert len(server.asked) == 4
        compare_targets([target], env=bell, tasks=3, max_tokens=9)
        assert len(server.asked) == 7
        found = compare_targets([target, f"{target}:few-shot"], env=bell, tasks=3)
        assert len(server.asked) == 10
        assert [arm["arm"] for arm in found["arms"]] == ["m", "m:few-shot"]
        assert len(server.bodies[-1]["messages"]) == len(server.bodies[0]["messages"]) + 4
        Path("bell.py").write_text(ECHO.replace('return "go"', 'return "come"'), encoding="utf-8")
        compare_targets([target], env=bell, tasks=3)
        assert len(server.asked) == 13
    assert len(files(tmp_path / "comparison")) == 3


def test_an_interrupted_comparison_goes_on_where_it_was(bell, tmp_path):
    asked = []

    def breaks(path, body):
        asked.append(body)
        return said("b") if len(asked) <= 3 else (401, {"error": {"message": "key revoked"}})

    access = Access(patience=Patience(at_once=1))
    with listening(breaks) as server:
        target = f"api:m@{server.url}/v1"
        with pytest.raises(ConfigError, match="401: key revoked"):
            compare_targets([target], env=bell, tasks=6, access=access)
        (path,) = files(tmp_path / "comparison")
        assert len(path.read_text().splitlines()) == 3
        with path.open("a") as file:
            file.write('{"task": "torn')  # killed while it wrote
        server.answer = lambda path, body: said("c")
        found = compare_targets([target], env=bell, tasks=6, access=access)
        assert len(server.asked) == 4 + 3
    assert (found["arms"][0]["success"], found["arms"][0]["n"]) == (0.5, 6)
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [0] * 6


def test_what_failed_for_the_servers_sake_is_unscored_and_asked_again(bell):
    flaky = iter([said("b")])
    access = Access(patience=Patience(at_once=1, seconds=0.05, connecting=0.05, pause=0.02))
    with listening(lambda path, body: next(flaky, (500, "x"))) as server:
        target = f"api:m@{server.url}/v1"
        with pytest.raises(EngineError, match="5 requests in a row were given up"):
            compare_targets([target], env=bell, tasks=8, access=access)
        (path,) = files(Path("comparison"))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [row["success"] for row in rows] == [True] + [None] * 5  # unknown, not failed
        server.answer = lambda path, body: said("b")
        found = compare_targets([target], env=bell, tasks=8, access=access)
    assert (found["arms"][0]["success"], found["arms"][0]["n"], found["arms"][0]["unscored"]) == (1.0, 8, 0)


def test_a_task_that_fails_alone_is_unscored_not_zero(bell):
    calls = iter(range(100))

    def answer(path, body):  # the second task fails twice, which is one time too many
        return (500, "x") if next(calls) in (1, 2) else said("b")

    access = Access(patience=Patience(at_once=1, seconds=0.5, pause=0.3))
    with listening(answer) as server:
        found = compare_targets([f"api:m@{server.url}/v1"], env=bell, tasks=5, access=access)
    arm = found["arms"][0]
    assert (arm["n"], arm["unscored"], arm["success"]) == (4, 1, 1.0)


def test_unknown_usage_is_an_unknown_cost(bell):
    with listening(lambda path, body: said("b", usage=None)) as server:
        found = compare_targets([f"api:m@{server.url}/v1"], env=bell, tasks=2, prices=Prices(1.0, 2.0))
    assert (found["arms"][0]["tokens"], found["arms"][0]["cost_per_1000"]) == (None, None)


def test_prices():
    from renshu.evaluation import Tokens

    assert Prices(2.0, 10.0, cached=1.0).of_1000(Tokens(100, 4, 60), None) == pytest.approx(0.18)
    assert Prices(2.0, 10.0, cached=1.0).of_1000(Tokens(100, 4), None) is None  # nobody told what was cached
    assert Prices(2.0, 10.0).of_1000(Tokens(100, 4, 60), None) == pytest.approx(0.24)
    with pytest.raises(ConfigError, match="needs those of the others"):
        Prices(cached=1.0)


def test_an_hour_of_this_machine_is_no_price_of_another(bell):
    with listening(lambda path, body: said("b")) as server:
        target = f"api:m@{server.url}/v1"
        found = compare_targets([target], env=bell, tasks=2, prices=Prices(hour=1.0))
        assert found["arms"][0]["cost_per_1000"] is None
        own = {"m": Prices(1.0, 2.0)}
        found = compare_targets([target], env=bell, tasks=2, prices=Prices(hour=1.0), own_prices=own)
        assert found["arms"][0]["cost_per_1000"] == pytest.approx((10 + 2 * 5) / 1000)
        with pytest.raises(ConfigError, match="--price gpt: there is no such arm; there are m"):
            compare_targets([target], env=bell, own_prices={"gpt": Prices(1.0, 1.0)})


def test_one_task_many_times(bell):
    with listening(tidy("b")) as server:
        target = f"api:m@{server.url}/v1"
        found = repeat_task([target], 1, times=4, temperature=0.5, env=bell)
        assert (found["arms"][0]["success"], found["arms"][0]["distinct"]) == (0.5, 2)
        assert {body["temperature"] for body in server.bodies} == {0.5}
        repeat_task([target], 1, times=6, temperature=0.5, env=bell)
        assert len(server.asked) == 6


def test_eval(bell, tmp_path, call, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    with listening(tidy("b")) as server:
        target = f"api:m@{server.url}/v1"
        options = ("--env", bell, "--tasks", 4, "--api-key-env", "MY_KEY", "--log", "log.jsonl", "--json")
        code, out, error = call("eval", target, *options)
        assert code == 0, error
        assert server.asked[0][2]["authorization"] == f"Bearer {KEY}"
        assert call("eval", target, "--env", bell, "--tasks", 4, "--api-key-env", "MY_KEY")[0] == 0
        assert len(server.asked) == 4
    found = json.loads(out)
    assert (found["success"], found["n"], found["model"], found["seed"]) == (0.5, 4, target, None)
    assert found["tokens"] == {"prompt": 100.0, "sampled": 4.0, "cached": 60.0}
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 4
    for path in [*tmp_path.rglob("*.jsonl")]:
        assert KEY not in path.read_text()
    assert KEY not in out + error


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("eval", "api:m@https://h/v1"), 1, "name an environment with --env"),
        (("compare", "api:m@https://h/v1"), 1, "name an environment with --env"),
        (("eval", "api:m"), 1, "is named api:MODEL@URL"),
        (("eval", "api:m@https://u:secret@h/v1", "--env", "flights"), 1, "must hold no name or password"),
        (("compare", "api:m@https://h/v1:base"), 1, "nobody trains it here"),
        (("eval", "embedded", "--env", "flights", "--api-key-env", "X"), 2, "would do nothing here"),
        (
            ("eval", "api:m@https://h/v1", "--env", "flights", "--api-key-env", "A B"),
            1,
            "name of an environment",
        ),
        (("eval", "api:m@https://h/v1", "--env", "flights", "--api-key-env", "NO_SUCH"), 1, "no key in the"),
        (("eval", "api:m@https://api.openai.com/v1", "--env", "flights"), 1, "variable OPENAI_API_KEY"),
        (
            ("compare", "api:m@https://h/v1", "api:n@https://g/v1", "--api-key-env", "X"),
            1,
            "for which host: h, g",
        ),
        (("compare", "api:m@https://h/v1", "--api-key-env", "g=X"), 1, "no model of g is asked"),
        (("compare", "api:m@https://h/v1", "--price", "m=1"), 2, "expected ARM=IN/OUT"),
        (("chat", "api:m@https://h/v1"), 1, "no weights and no token ids"),
        (("serve", "api:m@https://h/v1"), 1, "no weights and no token ids"),
    ],
)
def test_misuse_is_told(call, monkeypatch, arguments, code, reason):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    told, out, error = call(*arguments)
    assert (told, out) == (code, "")
    assert reason in " ".join(error.replace("│", " ").split())
    assert "secret" not in error


def test_training_is_refused():
    for refused in (find_target, lambda name: load(ModelSettings(name=name))):
        with pytest.raises(ConfigError, match="no token ids"):
            refused("api:m@https://h/v1")


def test_names_and_keys_by_host():
    targets = ["api:m@https://h/v1", "api:org/m@https://g/v1", "api:m@http://localhost:1/v1:few-shot"]
    assert [arm.name for arm in find_arms(targets)] == [targets[0], "org/m", f"{targets[2]}"]
    assert Address.read("api:a@b@https://h/v1/") == Address("a@b", "https://h/v1")
    access = Access.of([*targets, "api:x@https://api.openai.com/v1"], ["h=H_KEY"])
    assert access.keys == {"api.openai.com": "OPENAI_API_KEY", "h": "H_KEY"}
    assert Access.of(["api:x@https://api.openai.com/v1"], ["MINE"]).keys == {"api.openai.com": "MINE"}


def test_a_damaged_file_is_told_and_tries_are_read(bell, tmp_path):
    with listening(lambda path, body: said("b")) as server:
        target = f"api:m@{server.url}/v1"
        found = compare_targets([target], env=bell, tasks=2, tries=Tries(k=2))
        assert found["arms"][0]["samples"]["pass_hat"] == [1.0, 1.0]
        (path,) = files(tmp_path / "comparison")
        path.write_text("{}\n" + path.read_text())
        with pytest.raises(Exception, match=r"is damaged at line 1: it has no task"):
            compare_targets([target], env=bell, tasks=2)
