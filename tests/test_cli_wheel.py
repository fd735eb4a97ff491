"""The wheel and the sdist hold what a fresh installation needs, and nothing of a developer's machine."""

import re
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import renshu
from renshu.pipeline.recipe import built_in_recipes

ROOT = Path(__file__).parent.parent
NEEDED = (
    *(f"renshu/models/embedded/{name}" for name in ("model.safetensors", "config.json", "tokenizer.json")),
    *("renshu/models/embedded/chat_template.jinja", "renshu/models/embedded/generation_config.json"),
    *(f"renshu/recipes/{name}.yaml" for name in built_in_recipes()),
    *(
        f"renshu/scaffold/{language}/{name}.template"
        for language in ("en", "zh")
        for name in ("README.md", "cases.yaml", "environment.py", "recipe.yaml", "test.py")
    ),
    *("renshu/chat/qwen2_5.jinja", "renshu/report/report.html.jinja"),
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")))
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    names = set(wheel.namelist())
    assert set(NEEDED) - names == set()
    package = ROOT / "src" / "renshu"
    here = {
        f"renshu/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("renshu/")} == here


def test_the_wheel_holds_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"renshu", f"renshu-{renshu.__version__}.dist-info"}
    assert not [name for name in wheel.namelist() if name.endswith((".pyc", ".pt", ".pkl", ".log"))]
    assert sum(entry.file_size for entry in wheel.infolist()) < 20 * 2**20


def test_the_wheel_says_what_it_is(wheel):
    info = f"renshu-{renshu.__version__}.dist-info"
    assert "renshu = renshu.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    metadata = message_from_string(wheel.read(f"{info}/METADATA").decode("utf-8"))
    assert (metadata["Version"], metadata["Requires-Python"]) == (renshu.__version__, ">=3.11")
    required = [re.match(r"[\w-]+", line)[0] for line in metadata.get_all("Requires-Dist") if ";" not in line]
    assert {"torch", "transformers", "typer", "starlette", "uvicorn"} <= set(required)
    assert f"{info}/licenses/LICENSE" in wheel.namelist()


def test_the_sdist_can_build_the_wheel_and_run_the_tests(tmp_path):
    (path,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {f"src/{name}" for name in NEEDED} | {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "constraints.txt",
    }
    assert needed | {"tests/conftest.py", "docs/architecture.md"} <= names
    assert not [name for name in names if name.startswith(("runs/", ".venv/", "dist/"))]
