"""Settings: YAML's traps, overrides, presets, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from renshu.config import StrictModel, apply_overrides, apply_preset, load_yaml
from renshu.errors import ConfigError


class Inner(StrictModel):
    epochs: int = 1
    learning_rate: float = 1e-4
    pack: bool = True
    scheme: str = "linear"


class Outer(StrictModel):
    seed: int
    stages: tuple[Inner, ...] = ()


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_numbers_words_and_booleans_are_what_they_look_like(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "a: 2e-4\nb: off\nc: no\nd: yes\ne: true\nf: 1_000\ng: 010\nh: 2026-01-02\n"
        "i: 1:30\nj: ~\nk: .5\nl: 1E3\non: 7\nm: -3\nn:\n",
    )
    assert load_yaml(path) == {
        "a": 2e-4, "b": "off", "c": "no", "d": "yes", "e": True, "f": 1000, "g": "010", "h": "2026-01-02",
        "i": "1:30", "j": None, "k": 0.5, "l": 1000.0, "on": 7, "m": -3, "n": None,
    }  # fmt: skip
    assert isinstance(load_yaml(path)["a"], float)


@settings(max_examples=50, deadline=None)
@given(value=st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**12), 10**12))
def test_every_python_number_survives_an_override(value: float) -> None:
    result = apply_overrides({}, [f"x={value!r}"])["x"]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nseed: 2\n", "line 2: the key 'seed' occurs twice"),
        ("a:\n  b: 1\n  b: 2\n", "line 3: the key 'b' occurs twice"),
        ("1: x\n", "line 1: the key 1 is not text"),
        ("", "is empty"),
        ("- 1\n", "holds a list"),
        (
            "a: [1\n",
            "not readable as YAML: while parsing a flow sequence at line 1, column 4: a: [1 ^ expected",
        ),
        ("a: &王 1\n", "not readable as YAML: while scanning an anchor at line 1, column 4: a: &王 1"),
        ("a: !!python/object/apply:os.system [id]\n", "not readable as YAML"),
    ],
)
def test_bad_files_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"recipe\.yaml") as caught:
        load_yaml(write(tmp_path, text))
    assert message in str(caught.value)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file"):
        load_yaml(tmp_path / "absent.yaml")


def test_unknown_keys_name_path_known_keys_and_nearest_spelling() -> None:
    with pytest.raises(ConfigError) as caught:
        Outer.from_dict({"seed": 0, "stages": [{}, {"epoch": 3}]}, source="recipe.yaml")
    assert str(caught.value) == (
        "recipe.yaml: stages.1: unknown key 'epoch' (did you mean 'epochs'?); "
        "known keys: epochs, learning_rate, pack, scheme"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"pack": "off"}, "pack: write true or false, not 'off'"),
        ({"pack": 1}, "pack: write true or false, not 1"),
        ({"epochs": True}, "epochs: expected a number, not True"),
        ({"learning_rate": float("nan")}, "learning_rate: Input should be a finite number, got nan"),
        ({"epochs": 1.5}, "epochs: Input should be a valid integer"),
        ({"scheme": False}, "scheme: Input should be a valid string, got False"),
    ],
)
def test_wrong_types_are_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Inner(**data)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_a_list_whose_entry_is_wrong_is_not_called_too_short_as_well() -> None:
    class Several(StrictModel):
        inner: tuple[Inner, ...] = Field(min_length=1)

    with pytest.raises(ConfigError, match=r"^r: inner\.0: unknown key 'epoch'[^\n]*$"):
        Several.from_dict({"inner": [{"epoch": 1}]}, source="r")
    with pytest.raises(ConfigError, match=r"^r: inner: Tuple should have at least 1 item[^\n]*$"):
        Several.from_dict({"inner": []}, source="r")


def test_missing_values_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^r\.yaml: seed: Field required$"):
        Outer.from_dict({}, source="r.yaml")


def test_overrides_set_copies_and_refuse_dead_ends() -> None:
    data = {"seed": 0, "stages": [{"epochs": 1}, {"epochs": 2}]}
    changed = apply_overrides(
        data, ["stages.1.epochs=5", "model.name=a=b", "stages.0={pack: false}", "seed=off"]
    )
    assert changed == {"seed": "off", "stages": [{"pack": False}, {"epochs": 5}], "model": {"name": "a=b"}}
    assert data == {"seed": 0, "stages": [{"epochs": 1}, {"epochs": 2}]}
    for override, message in {
        "seed": "write it as key=value",
        "=3": "write it as key=value",
        "seed.x=1": "seed is 0, which has no keys",
        "stages.2.epochs=1": "'2' is not one of 0 … 1",
        "stages.first.epochs=1": "'first' is not one of",
        "seed=[1": "not readable as YAML",
    }.items():
        with pytest.raises(ConfigError, match=r".") as caught:
            apply_overrides(data, [override])
        assert message in str(caught.value)


def test_presets_are_taken_out_and_applied_only_when_chosen() -> None:
    data = {"model": {"name": "tiny"}, "presets": {"gpu": {"model.name": "big", "model.adapter": "qlora"}}}
    assert apply_preset(data, None) == {"model": {"name": "tiny"}}
    assert apply_preset(data, "gpu") == {"model": {"name": "big", "adapter": "qlora"}}
    with pytest.raises(ConfigError, match="no preset 'cpu'; this recipe has: gpu"):
        apply_preset(data, "cpu")
    with pytest.raises(ConfigError, match="expected a mapping of names"):
        apply_preset({"presets": {"gpu": 3}}, "gpu")


def test_hostile_yaml_is_not_readable_and_no_crash(tmp_path: Path) -> None:
    for text in ("a: " + "9" * 5000, "[" * 3000, "a: " + "{a: " * 3000 + "1" + "}" * 3000, "\0"):
        with pytest.raises(ConfigError, match="not readable as YAML"):
            load_yaml(write(tmp_path, text))
    with pytest.raises(ConfigError, match="not readable as YAML"):
        apply_overrides({}, ["seed=" + "9" * 5000])
