"""A run handed over: loaded in Python, packed, unpacked by somebody careful, trained again."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile

import pytest
import torch
from safetensors.torch import load_file, save_file

import renshu
from renshu.cli import main
from renshu.errors import ConfigError, DataError
from renshu.handover.bundle import write_bundle
from renshu.handover.lock import lock_text, version_differences
from renshu.handover.pack import pack
from renshu.handover.reproduce import reproduce
from renshu.handover.unpack import open_bundle
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.train import train_recipe
from renshu.types import Message, Stop
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import ECHO, write_recipe

STAGES = [
    {"name": "warm-up", "sft": {"demonstrations": 8, "learning_rate": 0.1, "epochs": 40}},
    {"name": "practice", "grpo": {"steps": 2, "tasks_per_step": 2, "group": 4, "learning_rate": 0.01}},
]
HELPER = """
import json
from pathlib import Path

NAMES = json.loads((Path(__file__).parent / "names.json").read_text("utf-8"))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of an environment that imports a module and reads a file beside it."""
    folder = tmp_path_factory.mktemp("maker")
    model = save_tiny_model(folder / "tiny", template=qwen_template())
    small = {"tasks": 4, "dev_tasks": 2, "max_tokens": 6}
    recipe = write_recipe(folder, model, stages=STAGES, eval=small, threads=1)
    (folder / "bell.py").write_text(f"import bell_names\nassert bell_names.NAMES\n{ECHO}", encoding="utf-8")
    (folder / "bell_names.py").write_text(HELPER, encoding="utf-8")
    (folder / "names.json").write_text('["鈴"]', encoding="utf-8")
    (folder / "unused.py").write_text("1 / 0", encoding="utf-8")
    return train_recipe(read_recipe(str(recipe)), name="bell", base=folder)


@pytest.fixture(scope="module")
def bundle(run, tmp_path_factory):
    return pack(run, tmp_path_factory.mktemp("bundle") / "bell.renshu.zip").path


# --- load_agent


def test_a_loaded_agent_replies_and_solves(run):
    agent = renshu.load_agent(run)
    assert agent.note is None
    assert agent.reply([{"role": "user", "content": "go"}], max_tokens=6) == Message("assistant", "b")
    assert agent.reply([Message("user", "go")], max_tokens=6).content == "b"
    solved = agent.solve(3, max_tokens=6)
    assert (solved.task.id, solved.stop, solved.score.success) == ("draw/test/3", Stop.ANSWERED, True)
    assert agent.solve({"number": 7}, max_tokens=6).task["number"] == 7
    with pytest.raises(DataError, match=r"messages\[0\].role: 'king'"):
        agent.reply([{"role": "king", "content": "go"}])
    with pytest.raises(ConfigError, match="there is no test task 99"):
        agent.solve(99)


def test_a_loaded_agent_shows_functions_as_tools(run, monkeypatch):
    def ring(times: int) -> str:
        """Ring the bell."""
        return "ding" * times

    agent = renshu.load_agent(run)
    shown = []
    prompt = agent.agent.chat.prompt
    monkeypatch.setattr(agent.agent.chat, "prompt", lambda m, t: shown.append(t) or prompt(m, t))
    agent.reply([Message("user", "go")], [ring], max_tokens=2)
    parameters = {"type": "object", "properties": {"times": {"type": "integer"}}, "required": ["times"]}
    (tool,) = shown[0]
    assert tool["function"]["name"] == "ring"
    assert {key: tool["function"]["parameters"][key] for key in parameters} == parameters
    call = {"role": "assistant", "content": None, "tool_calls": []}
    call["tool_calls"] = [{"id": "x", "type": "function", "function": {"name": "ring", "arguments": "{}"}}]
    answer = {"role": "tool", "tool_call_id": "x", "content": "ding"}
    assert agent.reply([Message("user", "go"), call, answer], [ring], max_tokens=2).role == "assistant"


# --- pack


def test_the_bundle_holds_what_the_run_needs_and_no_more(run, bundle):
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
        assert archive.testzip() is None
        card = archive.read("card.md").decode()
        recipe = archive.read("recipe.resolved.yaml").decode()
        everything = b"".join(archive.read(n) for n in names if not n.endswith(".safetensors"))
    wanted = {
        "manifest.json",
        "card.md",
        "recipe.resolved.yaml",
        "lock.txt",
        "provenance.json",
        "summary.json",
    }
    wanted |= {"report.html", "source/bell.py", "source/bell_names.py", "source/names.json"}
    wanted |= {"checkpoints/final/model.safetensors", "checkpoints/final/complete.json"}
    wanted |= {"model/model.safetensors", "model/config.json", "model/tokenizer.json"}
    assert wanted <= names
    assert "source/unused.py" not in names
    assert "name: model\n" in recipe
    assert str(run.parent).encode() not in everything  # no path of the maker's machine
    arms = json.loads((run / "summary.json").read_text())["evaluation"]["Bell"]["arms"]
    assert (
        f"| final | {arms[-1]['success']:.1%} | {arms[-1]['low']:.1%} to {arms[-1]['high']:.1%} | 4 |" in card
    )
    assert "2. practice: grpo, 2 steps" in card


def test_packing_twice_gives_the_same_bytes(run, bundle, tmp_path):
    again = pack(run, tmp_path / "again.zip")
    assert again.path.read_bytes() == bundle.read_bytes()
    assert again.changed == ()
    with pytest.raises(ConfigError, match="is there already"):
        pack(run, bundle)


def test_the_command_lists_what_it_packs(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["renshu", "pack", str(run)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    path = tmp_path / f"{run.name}.renshu.zip"
    assert lines[-1] == f"{path.name}: {len(lines) - 1} files, {path.stat().st_size:,} bytes"
    assert "  source/bell.py" in lines


def test_the_lock_names_exact_versions(bundle):
    with zipfile.ZipFile(bundle) as archive:
        lock = archive.read("lock.txt").decode()
    assert lock.splitlines()[0] == f"# python {sys.version.split()[0]}"
    assert f"torch=={torch.__version__.partition('+')[0]}" in lock
    assert "jinja2==" in lock
    assert version_differences(lock) == []
    assert version_differences("# python 2.7\nno-such-package==1.0\n") == [
        f"python: 2.7 in the lock, {sys.version.split()[0]} here",
        "no-such-package: 1.0 in the lock, none here",
    ]
    assert "torch==0.1" in lock_text({"python": "3.12", "torch": "0.1"}).splitlines()


def test_unfinished_runs_and_lost_files_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        pack(tmp_path)
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "summary.json").unlink()
    with pytest.raises(ConfigError, match="did not come to its end"):
        pack(copy)
    moved = shutil.copytree(run, tmp_path / "moved")
    record = json.loads((moved / "provenance.json").read_text())
    (moved / "provenance.json").write_text(json.dumps({**record, "base": str(tmp_path)}))
    with pytest.raises(ConfigError, match=r"env: .*bell\.py is not there any more"):
        pack(moved)


TAIL = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6"  # no secret: it opens nothing


def test_a_run_whose_recipe_is_damaged_is_not_packed(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "recipe.resolved.yaml").write_text("{}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"recipe.resolved.yaml: stages: Field required"):
        pack(copy, tmp_path / "run.zip")


def test_a_run_without_its_report_is_told_how_to_get_it(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    with pytest.raises(ConfigError, match=r"report.html cannot be read .*write it again by `renshu report"):
        pack(tmp_path / "run", tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


def test_a_run_with_secrets_is_not_packed(run, tmp_path):
    leak = "WEATHER_KEY" + " = '" + TAIL + "'"
    home, names = run.parent, run.parent / "names.json"
    before = names.read_text("utf-8")
    source = (home / "bell.py").read_text("utf-8")
    try:
        names.write_text(f'["x",\n"{leak}"]', encoding="utf-8")
        (home / ".env").write_text("A=1", encoding="utf-8")
        (home / "bell.py").write_text(source + '\nSETTINGS = ".env"\n', encoding="utf-8")
        with pytest.raises(DataError, match="secrets must not be handed over") as refused:
            pack(run, tmp_path / "leak.zip")
        assert "source/names.json:2 holds" in str(refused.value)
        assert "source/.env:1 holds what looks like a file of secrets" in str(refused.value)
        assert TAIL not in str(refused.value)
        assert not list(tmp_path.iterdir())
        packed = pack(run, tmp_path / "leak.zip", allow=["source/names.json", "source/.env"])
        assert len(packed.allowed) == 2
        assert packed.changed == (".env", "bell.py", "names.json")
        with pytest.raises(ConfigError, match="no such file in the bundle"):
            pack(run, tmp_path / "more.zip", allow=["source/names.json", "source/.env", "nowhere"])
    finally:
        names.write_text(before, encoding="utf-8")
        (home / "bell.py").write_text(source, encoding="utf-8")
        (home / ".env").unlink()


def test_a_changed_byte_is_noticed(bundle, tmp_path):
    with zipfile.ZipFile(bundle) as archive:
        files = {n: archive.read(n) for n in archive.namelist() if n != "manifest.json"}
        manifest = archive.read("manifest.json")
    files["source/bell.py"] += b"\nimport os"
    with zipfile.ZipFile(tmp_path / "changed.zip", "w") as archive:
        for name, data in {**files, "manifest.json": manifest}.items():
            archive.writestr(name, data)
    with pytest.raises(DataError, match=r"'source/bell\.py' is not the file that was packed"):
        open_bundle(tmp_path / "changed.zip", tmp_path / "out")


def test_sound_archives_that_are_no_runs_are_refused(bundle, tmp_path):
    write_bundle(tmp_path / "other.zip", {"a.txt": b"hello"})
    with pytest.raises(DataError):
        open_bundle(tmp_path / "other.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with zipfile.ZipFile(bundle) as archive:
        files = {n: archive.read(n) for n in archive.namelist() if n != "manifest.json"}
    recipe = files["recipe.resolved.yaml"]
    files["recipe.resolved.yaml"] = recipe.replace(b"trust_remote_code: false", b"trust_remote_code: true")
    assert files["recipe.resolved.yaml"] != recipe
    write_bundle(tmp_path / "code.zip", files)
    with pytest.raises(DataError, match="brings Python code of its own"):
        open_bundle(tmp_path / "code.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("keep")
    with pytest.raises(DataError, match="not empty"):
        open_bundle(bundle, tmp_path / "full")


# --- reproduce


def test_another_folder_gives_the_same_weights(bundle, run, tmp_path, monkeypatch, capsys):
    """The maker's folder is gone; what is unpacked is a run; training it again gives the same bits."""
    hidden = run.parent.with_name("hidden")
    run.parent.rename(hidden)
    monkeypatch.chdir(tmp_path)
    try:
        monkeypatch.setattr(sys, "argv", ["renshu", "reproduce", str(bundle), "--trust"])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        assert not ended.value.code, shown.err
        assert "the final weights are the same, bit for bit" in shown.out
        assert "success of the packed run" in shown.out
        assert "other version" not in shown.err
        agent = renshu.load_agent(tmp_path / "bell")
        assert agent.reply([Message("user", "go")], max_tokens=6).content == "b"
        assert agent.solve(0, max_tokens=6).score.success is True
    finally:
        hidden.rename(run.parent)
    again = load_file(tmp_path / "bell/again/checkpoints/final/model.safetensors")
    packed = load_file(run / "checkpoints/final/model.safetensors")
    assert all(torch.equal(again[name], packed[name]) for name in packed)


def test_other_weights_are_told_with_exit_code_1(bundle, tmp_path, monkeypatch, capsys):
    folder = open_bundle(bundle, tmp_path / "bell")
    path = folder / "checkpoints/final/model.safetensors"
    weights = load_file(path)
    name = "model.norm.weight"
    weights[name][0] += 0.5
    save_file(weights, path, metadata={"format": "pt"})
    result = reproduce(folder, lambda code: code == ["source/bell.py", "source/bell_names.py"])
    assert not result.identical
    assert len(result.odd) == 1
    assert result.odd[0].startswith(f"model.safetensors/{name}: largest difference 0.5")

    monkeypatch.setattr("renshu.handover.unpack.open_bundle", lambda *_, **__: folder)
    monkeypatch.setattr("renshu.handover.reproduce.reproduce", lambda *_: result)
    monkeypatch.setattr(sys, "argv", ["renshu", "reproduce", str(bundle), "--trust"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "the final weights differ in 1 tensors" in capsys.readouterr().out


def test_nothing_runs_without_trust(bundle, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["renshu", "reproduce", str(bundle), "--out", str(tmp_path / "x")])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert "This will run Python code that came with the bundle, as you: source/bell.py" in shown.out
    assert "nothing was run: look at the code in" in shown.err
    assert not (tmp_path / "x/again").exists()


def test_an_adapter_finds_its_base_in_the_bundle(tmp_path):
    """The base was a folder of the maker's machine: it travels along, and nothing names that folder."""
    maker = tmp_path / "maker"
    maker.mkdir()
    model = save_tiny_model(maker / "tiny", template=qwen_template())
    stages = [{"name": "warm-up", "sft": {"demonstrations": 4, "learning_rate": 0.1, "epochs": 2}}]
    small = {"tasks": 2, "dev_tasks": 2, "max_tokens": 4, "compare": []}
    settings = {"name": str(model), "adapter": {"rank": 2}}
    recipe = write_recipe(maker, model, stages=stages, eval=small, threads=1, model=settings)
    run = train_recipe(read_recipe(str(recipe)), name="bell", base=maker)
    said = renshu.load_agent(run).reply([Message("user", "go")], max_tokens=6)
    path = pack(run, tmp_path / "bell.renshu.zip").path
    with zipfile.ZipFile(path) as archive:
        assert "checkpoints/final/adapter_model.safetensors" in archive.namelist()
        assert json.loads(archive.read("checkpoints/final/renshu.json"))["model"] == "model"
        assert "an adapter, " in archive.read("card.md").decode()
        texts = [archive.read(name) for name in archive.namelist() if not name.endswith(".safetensors")]
    assert not [text for text in texts if str(maker).encode() in text]
    maker.rename(tmp_path / "hidden")
    folder = open_bundle(path, tmp_path / "bell")
    assert renshu.load_agent(folder).reply([Message("user", "go")], max_tokens=6) == said
    assert reproduce(folder, lambda _: True).identical
