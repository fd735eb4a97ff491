"""What guards a hand-over: secrets are found before packing, and archives are read as if by an enemy."""

from __future__ import annotations

import hashlib
import json
import stat
import zipfile
from pathlib import Path

import pytest

from renshu.errors import DataError
from renshu.handover.bundle import extract
from renshu.handover.secrets import find_secrets

# --- secrets: every value is put together here, so that no scanner takes this file for a leak

TAIL = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6"
SECRETS = {
    "an API key (sk-…)": "client = OpenAI(api_key='" + "sk-" + "proj-" + TAIL + "')",
    "a Hugging Face token": "login('" + "hf_" + TAIL + "')",
    "an AWS key": "id = '" + "AKIA" + "IOSFODNN7EXAMPLE'",
    "a private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "a GitHub token": "ghp" + "_" + TAIL,
    "a key, token or password": "WEATHER_KEY" + " = '" + TAIL + "'",
    "a bearer token": "headers = {'Authorization': 'Bearer " + TAIL + "'}",
    "a password in an address": "url = 'postgres://ann:" + "hunter2pass@db/x'",
}
HARMLESS = [
    "api_key = os.environ['WEATHER_API_KEY']",
    "token = tokenizer.convert_tokens_to_ids('<|im_end|>')",
    'eos_token: "<|endoftext|>"',
    "password = getpass.getpass('your password please')",
    "task-of-the-day = risk-free-and-easy-to-understand-words",
    "sha256 = '" + "9f86d081884c7d659a2feaa0c55ad015" + "'",
    "url = 'http://localhost:8000/v1'",
    '{"key": "stages.0.sft.learning_rate", "values": [0.1]}',
    "max_tokens=512, key=lambda item: item.success_rate_2",
]


@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_are_found_and_never_printed(kind):
    data = f"# 鍵\nimport os\n{SECRETS[kind]}\n".encode()
    (secret,) = find_secrets("source/desk.py", data)
    assert str(secret) == f"source/desk.py:3 holds what looks like {kind}"


def test_harmless_lines_are_let_pass():
    assert [str(s) for line in HARMLESS for s in find_secrets("x.py", line.encode())] == []
    assert list(find_secrets("w.safetensors", b"\0\1" + SECRETS["an AWS key"].encode())) == []


# --- unpack: as if by an enemy


def entry(name: str, *, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


def archive_of(path: Path, *entries: tuple[zipfile.ZipInfo, bytes], manifest: object = None) -> Path:
    """An archive with a manifest that lists all its files correctly, unless another is given."""
    files = {i.filename: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for i, d in entries}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "manifest.json", json.dumps({"format": 1, "files": files} if manifest is None else manifest)
        )
        for info, data in entries:
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return path


NAMES = [
    "../evil.py",
    "/etc/evil",
    "source/../../evil",
    "C:/evil",
    "source\\evil",
    "source//evil",
    "a/./b",
    "sub/",
    "n" * 300,
]


@pytest.mark.parametrize(
    "name", [*NAMES, "a\nb", " a", "nul.", "checkpoints/final/model.bin", "model/code.py"]
)
def test_names_that_reach_out_are_refused(name, tmp_path):
    path = archive_of(tmp_path / "b.zip", (entry(name), b"x"))
    with pytest.raises(DataError, match="is refused"):
        extract(path, tmp_path / "in" / "out")
    assert not (tmp_path / "in" / "out").exists()
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {"b.zip"}


def hostile(folder: Path) -> dict[str, Path]:
    plain = (entry("a.txt"), b"hello")
    listed = {"a.txt": {"bytes": 5, "sha256": "0" * 64}}
    deep = {"format": 1, "files": {}, "x": []}
    files = {
        "link": archive_of(folder / "1", (entry("a", mode=stat.S_IFLNK | 0o777), b"/etc/passwd")),
        "pipe": archive_of(folder / "2", (entry("a", mode=stat.S_IFIFO | 0o644), b"")),
        "twice": archive_of(folder / "3", (entry("a"), b"x"), (entry("A"), b"y")),
        "file and folder": archive_of(folder / "10", (entry("a"), b"x"), (entry("A/b"), b"y")),
        "bomb": archive_of(folder / "4", (entry("a"), b"\0" * (80 << 20))),
        "checksum": archive_of(folder / "5", plain, manifest={"format": 1, "files": listed}),
        "not listed": archive_of(folder / "6", plain, manifest=deep),
        "missing": archive_of(folder / "7", manifest={"format": 1, "files": listed}),
        "other format": archive_of(folder / "8", plain, manifest={"format": 2, "files": {}}),
        "manifest a list": archive_of(folder / "9", plain, manifest=[]),
    }
    for name, data in {
        "no zip": b"hello",
        "empty": b"",
        "half": files["checksum"].read_bytes()[:-40],
    }.items():
        files[name] = folder / name
        files[name].write_bytes(data)
    with zipfile.ZipFile(folder / "bare", "w") as archive:
        archive.writestr("a.txt", "hello")
    return files | {"no manifest": folder / "bare"}


def test_hostile_archives_are_refused_and_leave_nothing(tmp_path):
    (tmp_path / "in").mkdir()
    for name, path in hostile(tmp_path / "in").items():
        with pytest.raises(DataError, match="is refused"):
            extract(path, tmp_path / "out" / name)
        assert not [p for p in (tmp_path / "out").rglob("*") if p.is_file()], name
    with pytest.raises(DataError, match="no such file"):
        extract(tmp_path / "nowhere.zip", tmp_path / "out" / "x")
