"""The archive in which a run is handed over: written the same every time, read as if by an enemy."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from renshu.errors import DataError

MANIFEST = "manifest.json"
FORMAT = 1
FILES = 10_000
MANIFEST_BYTES = 8 << 20
BYTES = 64 << 30
GROWTH = 100  # times the archive's own size, plus SMALL: what it may grow to
SMALL = 64 << 20
LONGEST = 255  # bytes of a name, which file systems take
CODE_FOLDER = "source"
# What a model's folder is made of; nothing of this runs when it is read.
MODEL_FILES = (".safetensors", ".json", ".jinja", ".txt", ".model")
_TIME = (1980, 1, 1, 0, 0, 0)
_PIECE = 1 << 20


def write_bundle(path: Path, files: Mapping[str, bytes | Path]) -> None:
    """Write an archive of `files` (name in the archive → content) and their checksums.

    Equal files make equal archives, byte for byte. Raises DataError where the disk refuses.
    """
    temporary = path.with_name(path.name + ".tmp")
    sums = {name: _sum(content) for name, content in sorted(files.items())}
    manifest = {"format": FORMAT, "files": sums}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(temporary, "w") as archive:
            _put(archive, MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).encode())
            for name, content in sorted(files.items()):
                _put(archive, name, content)
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def extract(path: Path, folder: Path) -> None:
    """Unpack an archive to `folder`, which must be new or empty, and appears only if all of it is sound.

    Raises DataError for an archive that is damaged, was changed, or reaches beyond its folder.
    """
    folder = folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not empty: choose another place with --out")
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = _entries(archive, path.stat().st_size)
            sums = _manifest(archive)
            if odd := sorted(entries.keys() ^ sums.keys()):
                raise DataError(f"its files are not those of its manifest: {odd[0]!r}")
            temporary.mkdir(parents=True)
            for name, entry in entries.items():
                _take(archive, entry, temporary / name, sums[name])
        if folder.exists():
            folder.rmdir()
        os.replace(temporary, folder)
    except DataError as error:
        raise DataError(f"{path} is refused: {error}") from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise DataError(f"{path} is refused: it is damaged, or no bundle: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put(archive: zipfile.ZipFile, name: str, content: bytes | Path) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
    info.compress_type = zipfile.ZIP_STORED if name.endswith(".safetensors") else zipfile.ZIP_DEFLATED
    if isinstance(content, bytes):
        archive.writestr(info, content)
        return
    info.file_size = content.stat().st_size
    with content.open("rb") as source, archive.open(info, "w") as target:
        shutil.copyfileobj(source, target, _PIECE)


def _sum(content: bytes | Path) -> dict[str, Any]:
    if isinstance(content, bytes):
        return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    with content.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": content.stat().st_size, "sha256": digest}


def _entries(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The files but the manifest, by name. Raises DataError for what no bundle holds."""
    infos = archive.infolist()
    total = sum(info.file_size for info in infos)
    if len(infos) > FILES:
        raise DataError(f"it holds {len(infos)} files, more than {FILES}")
    if total > min(BYTES, GROWTH * size + SMALL):
        raise DataError(f"it would grow from {size:,} to {total:,} bytes")
    seen: set[str] = set()
    for info in infos:
        _check(info)
        if info.filename.casefold() in seen:
            raise DataError(f"{info.filename!r} is in it twice")
        seen.add(info.filename.casefold())
    for name in seen:
        if shared := [str(parent) for parent in PurePosixPath(name).parents if str(parent) in seen]:
            raise DataError(f"{shared[0]!r} is a file in it and a folder")
    return {info.filename: info for info in infos if info.filename != MANIFEST}


def _check(info: zipfile.ZipInfo) -> None:
    name = info.filename
    parts = name.split("/")
    odd = any(part in ("", ".", "..") or part != part.strip() or part.endswith(".") for part in parts)
    if any(len(part.encode()) > LONGEST for part in parts):
        raise DataError(f"{name[:40] + '…'!r} is too long a name")
    if odd or "\\" in name or ":" in name or not name.isprintable() or name != info.orig_filename:
        raise DataError(f"{name!r} is no name that stays in its folder")
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):  # 0: not said, as by many tools
        raise DataError(f"{name!r} is no plain file")
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{name!r} is encrypted or packed in an unknown way")
    models = ("checkpoints", "model")
    if parts[0] in models and PurePosixPath(name).suffix not in MODEL_FILES:
        raise DataError(f"{name!r}: of models only {', '.join(MODEL_FILES)} are unpacked")


def _manifest(archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        info = archive.getinfo(MANIFEST)
    except KeyError:
        raise DataError("it has no manifest.json: it was not made by renshu pack") from None
    if info.file_size > MANIFEST_BYTES:
        raise DataError("its manifest.json is too large")
    try:
        value = json.loads(_read(archive, info))
        sums = {str(name): (int(s["bytes"]), str(s["sha256"])) for name, s in value["files"].items()}
        known = value["format"] == FORMAT
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DataError("its manifest.json cannot be read") from None
    if not known:
        raise DataError(f"its format is {value['format']!r}; this Renshu reads {FORMAT}: install a newer one")
    return sums


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with archive.open(info) as file:
        data = file.read(info.file_size + 1)
    if len(data) > info.file_size:
        raise DataError(f"{info.filename!r} is longer than it says")
    return data


def _take(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path, wanted: tuple[int, str]) -> None:
    """Write one file, no more of it than it declares. Raises DataError if it is not the one listed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with archive.open(info) as source, target.open("xb") as file:
        size = _copy(source, file, digest, info.file_size)
    if (size, digest.hexdigest()) != wanted:
        raise DataError(f"{info.filename!r} is not the file that was packed: its checksum differs")


def _copy(source: IO[bytes], target: IO[bytes], digest: Any, limit: int) -> int:
    size = 0
    while piece := source.read(_PIECE):
        size += len(piece)
        if size > limit:
            raise DataError("a file is longer than it says")
        digest.update(piece)
        target.write(piece)
    return size
