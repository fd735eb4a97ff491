"""`renshu pack`: a finished run becomes one archive that somebody else can use, check and train again.

manifest.json          size and SHA-256 of every file
card.md                what it is, results, limits
recipe.resolved.yaml   the recipe, its paths as they are in the archive
lock.txt               exact versions
provenance.json, summary.json, report.html, checkpoints/final/   as in the run's folder
source/                the environment, the modules beside it, the data that they and the recipe name
model/                 the base model, if it was a folder of the packer's machine
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from renshu.config import dump_yaml, load_yaml
from renshu.errors import ConfigError, DataError
from renshu.handover.bundle import CODE_FOLDER, MODEL_FILES, write_bundle
from renshu.handover.card import card
from renshu.handover.lock import lock_text
from renshu.handover.secrets import find_secrets
from renshu.models.get import KNOWN
from renshu.models.load import ORIGIN
from renshu.pipeline.origins import origin_files
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.run_folder import PROVENANCE, RECIPE, SUMMARY, RunFolder, is_run
from renshu.pipeline.sources import source_record, sources_of
from renshu.places import require_writable
from renshu.train.checkpoint import MARKER, is_complete, marker_text

MODEL = "model"  # the name of a packed base model, in the archive's recipe and folder
FINAL = "checkpoints/final"


@dataclass(frozen=True)
class Packed:
    """path: of the archive. files: in it. allowed: warnings about what was let pass. changed: files of the
    environment that are no longer as they were in the run, whose numbers are then of others.
    """

    path: Path
    files: tuple[str, ...]
    allowed: tuple[str, ...]
    changed: tuple[str, ...]


def pack(folder: str | Path, out: str | Path | None = None, *, allow: Sequence[str] = ()) -> Packed:
    """Pack a finished run. allow: files of the archive in which a secret was found by mistake.

    Raises ConfigError for a run that is not finished or lacks a file, DataError for secrets, naming file and
    line of each.
    """
    run = _finished(Path(folder))
    path = Path(out) if out is not None else Path(f"{run.path.resolve().name}.renshu.zip")
    if path.exists():
        raise ConfigError(f"{path} is there already: choose another name with --out, or remove it")
    require_writable(path, "--out")
    files = _files(run)
    found = [
        secret
        for name, content in sorted(files.items())
        if not name.endswith(".safetensors")  # numbers, and gigabytes of them
        for secret in find_secrets(name, content if isinstance(content, bytes) else content.read_bytes())
    ]
    held = [secret for secret in found if secret.file not in allow]
    if held:
        listed = "\n".join(f"  {secret}" for secret in held[:20])
        more = f"\n  and {len(held) - 20} more" if len(held) > 20 else ""
        raise DataError(
            f"not packed, since secrets must not be handed over:\n{listed}{more}\n"
            "remove them (and train again, if the run needs the file), or pass --allow FILE for a false alarm"
        )
    if unknown := sorted(set(allow) - files.keys()):
        raise ConfigError(
            f"--allow {unknown[0]}: no such file in the bundle; it holds {', '.join(sorted(files))}"
        )
    write_bundle(path, files)
    return Packed(path, tuple(sorted(files)), tuple(map(str, found)), tuple(_changed(run)))


def _changed(run: RunFolder) -> list[str]:
    record, recipe = run.provenance, load_yaml(run.path / RECIPE)
    now = source_record(str(recipe["env"]), run.base)
    return [name.removeprefix("source ") for name, value in now.items() if record.get(name) != value]


def _finished(folder: Path) -> RunFolder:
    if not is_run(folder):
        raise ConfigError(f"{folder} holds no run: name the folder that renshu train wrote")
    run = RunFolder(folder)
    if not (folder / SUMMARY).is_file() or not is_complete(folder / FINAL):
        raise ConfigError(f"{folder} did not come to its end: go on with it by `renshu resume {folder}`")
    if read_recipe(str(folder / RECIPE)).env is None:
        raise ConfigError(
            f"{folder} was trained through the proxy: its agent and tasks are not in it, so nobody could "
            f"train it again from an archive; hand over the model: {folder / FINAL}, or renshu merge"
        )
    return run


def _files(run: RunFolder) -> dict[str, bytes | Path]:
    """Every file of the archive by its name there, but the manifest."""
    provenance, summary = run.provenance, run.read_json(SUMMARY)
    recipe = load_yaml(run.path / RECIPE)
    sources = sources_of(recipe, run.base)
    packed = sources.recipe
    taken = {**sources.files, **origin_files(packed, run.base)}
    packed.pop("out", None)  # a place of this machine
    base = _local_model(str(recipe["model"]["name"]))
    if base is not None:
        packed["model"]["name"] = MODEL
    final = _final(run.path / FINAL, base, packed["model"]["name"])
    kind = "an adapter" if f"{FINAL}/adapter_config.json" in final else "all weights"
    files: dict[str, bytes | Path] = {f"{CODE_FOLDER}/{name}": path for name, path in taken.items()}
    files |= final
    if base is not None:
        files |= {f"{MODEL}/{path.name}": path for path in _model_files(base)}
    texts = {
        RECIPE: dump_yaml(packed),
        PROVENANCE: _json({**provenance, "base": CODE_FOLDER, "model": packed["model"]["name"]}),
        SUMMARY: _json(summary),
        "lock.txt": lock_text(provenance),
        "card.md": card(summary, packed, provenance, kind),
    }
    files |= {name: text.encode() for name, text in texts.items()}
    places = {str(base): MODEL} if base is not None else {}
    files["report.html"] = _report(run, places | {str(provenance.get("base", "")): CODE_FOLDER})
    return files


def _report(run: RunFolder, places: Mapping[str, str]) -> bytes:
    """The report, where folders of this machine are called as in the archive."""
    page = run.path / "report.html"
    try:
        text = page.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{page} cannot be read ({error}): write it again by `renshu report {run.path}`"
        ) from None
    for folder, name in places.items():
        if len(Path(folder).parts) > 2:  # a shorter path is a part of many words, and tells nothing
            text = text.replace(escape(folder), name)
    return text.encode()


def _local_model(name: str) -> Path | None:
    """The folder of a base model that nobody else can fetch. Raises ConfigError for an adapter there."""
    folder = Path(name).expanduser()
    if name == "embedded" or name in KNOWN or not folder.is_dir():
        return None
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"{folder} is an adapter on another model, which is not packed: merge the two and train on that"
        )
    return folder


def _model_files(folder: Path) -> list[Path]:
    found = [
        p for p in sorted(folder.iterdir()) if p.is_file() and p.suffix in MODEL_FILES and p.name != MARKER
    ]
    if not any(path.suffix == ".safetensors" for path in found):
        raise ConfigError(f"{folder} has no weights in safetensors, and no others are packed")
    return found


def _final(folder: Path, base: Path | None, name: str) -> dict[str, bytes | Path]:
    """The kept weights. Where an adapter names its base by a path of this machine, `name` replaces it."""
    files: dict[str, bytes | Path] = {f"{FINAL}/{path.name}": path for path in _model_files(folder)}
    if base is not None and (folder / ORIGIN).is_file():
        files[f"{FINAL}/{ORIGIN}"] = origin_text(folder, name)
    if (config := folder / "adapter_config.json").is_file():
        record = json.loads(config.read_text("utf-8"))
        files[f"{FINAL}/{config.name}"] = _json({**record, "base_model_name_or_path": name}).encode()
    sizes = {Path(name).name: _size(content) for name, content in files.items()}
    files[f"{FINAL}/{MARKER}"] = marker_text(sizes).encode()
    return files


def origin_text(folder: Path, model: str) -> bytes:
    """The record beside an adapter, with another place for its base."""
    record = json.loads((folder / ORIGIN).read_text("utf-8"))
    return (json.dumps({**record, "model": model}) + "\n").encode()


def _size(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
