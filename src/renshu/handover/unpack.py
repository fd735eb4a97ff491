"""Opening an archive of somebody else's: it becomes a run of this machine, and none of its code runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from renshu.config import dump_yaml, load_yaml
from renshu.errors import ConfigError, DataError, RenshuError
from renshu.handover.bundle import CODE_FOLDER, extract
from renshu.handover.pack import FINAL, MODEL, origin_text
from renshu.models.load import ORIGIN
from renshu.pipeline.run_folder import PROVENANCE, RECIPE, RunFolder
from renshu.train.checkpoint import MARKER, marker_text


def open_bundle(path: str | Path, out: str | Path | None = None, *, trust: bool = False) -> Path:
    """Unpack an archive that `renshu pack` made: a run folder, which `load_agent` and every verb take.

    out: a new folder; default: the archive's name. No code runs. Raises DataError for an archive that is not
    sound, or whose model brings code of its own, unless `trust`.
    """
    path = Path(path)
    name = path.name.removesuffix(".zip").removesuffix(".renshu")
    folder = Path(out) if out is not None else Path(name)
    if folder.resolve() == path.resolve():
        raise ConfigError(f"{folder} is the bundle itself: choose another place with --out")
    extract(path, folder)
    try:
        _settle(folder, trust)
    except RenshuError:
        shutil.rmtree(folder)
        raise
    except (OSError, AttributeError, TypeError, ValueError, KeyError) as error:
        shutil.rmtree(folder)
        raise DataError(f"{path} is refused: its files are not those of a run: {error}") from None
    return folder


def _settle(folder: Path, trust: bool) -> None:
    _localise(folder)
    if RunFolder(folder).recipe.model.trust_remote_code and not trust:
        raise DataError(
            "the bundle's model brings Python code of its own: pass --trust if you trust its maker"
        )


def _localise(folder: Path) -> None:
    """Make an unpacked archive a run of this machine: paths that must be absolute become so."""
    run, model = RunFolder(folder), (folder / MODEL).resolve()
    run.write_json(PROVENANCE, {**run.provenance, "base": str(_code(folder))})
    recipe = load_yaml(folder / RECIPE)
    settings = recipe.get("model")
    if not isinstance(settings, dict) or settings.get("name") != MODEL or not model.is_dir():
        return
    settings["name"] = str(model)
    run.write_text(RECIPE, dump_yaml(recipe))
    final = folder / FINAL
    if (final / ORIGIN).is_file():
        (final / ORIGIN).write_bytes(origin_text(final, str(model)))
        sizes = {path.name: path.stat().st_size for path in final.iterdir() if path.name != MARKER}
        (final / MARKER).write_text(marker_text(sizes), encoding="utf-8")


def _code(folder: Path) -> Path:
    code = (folder / CODE_FOLDER).resolve()
    code.mkdir(exist_ok=True)  # of a built-in environment there is no source
    return code
