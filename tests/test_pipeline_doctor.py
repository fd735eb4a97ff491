"""`renshu doctor` tells what is well from what is not, and what to do about it."""

import json
import sys

import pytest
import torch

from renshu.cli import main
from renshu.pipeline import doctor
from renshu.pipeline.doctor import Diagnosis, diagnose
from tiny_models import qwen_template, save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("model"), template=qwen_template()))


def by_name(found):
    return {diagnosis.name: diagnosis for diagnosis in found}


def test_a_sound_machine(model, tmp_path):
    found = by_name(diagnose(model, tmp_path / "not" / "yet"))
    names = ["python", "packages", "device", "threads", "memory", "disk", "runs", "cache"]
    assert list(found) == [*names, "gguf", "bitsandbytes", "model", "tree"]
    assert not [diagnosis for diagnosis in found.values() if diagnosis.state == "fail"]
    assert found["model"].text == f"{model}: 0.01M weights on cpu"
    assert found["tree"].text.startswith("a pass over a token tree equals separate rows")
    assert not (tmp_path / "not").exists()


def test_a_model_that_is_missing_fails_and_ends_the_look(tmp_path):
    found = by_name(diagnose(str(tmp_path / "none"), tmp_path))
    assert found["model"].state == "fail"
    assert "no such folder" in found["model"].text
    assert "tree" not in found


def test_trees_that_differ_from_rows_fail(model, tmp_path, monkeypatch):
    real = doctor.token_logprobs

    def broken(loaded, rows, *, layout):
        found = real(loaded, rows, layout=layout)
        if layout == "tree":
            found.logprobs[2] += 0.25
        return found

    monkeypatch.setattr(doctor, "token_logprobs", broken)
    tree = by_name(diagnose(model, tmp_path))["tree"]
    assert (tree.state, tree.text) == ("fail", "trees and rows differ by 0.2 in log-prob")


def test_what_is_short_is_told_with_what_to_do(model, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "free_memory", lambda: doctor.GIB)
    monkeypatch.setattr(doctor, "usable_cpus", lambda: 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    file = tmp_path / "file"
    file.write_text("x")
    monkeypatch.setenv("RENSHU_CACHE", str(file / "cache"))
    found = by_name(diagnose(model, tmp_path))
    assert found["memory"] == Diagnosis(
        "memory", "warn", "1.0 GiB free", "close programs, or lower eval.at_once and token_budget"
    )
    assert found["threads"].text == "4 threads on 1 usable CPUs"
    assert "threads: 1" in found["threads"].advice
    assert found["gguf"].state == "warn"
    assert found["gguf"].advice == "pip install 'renshu[gguf]'"
    assert found["cache"].state == "fail"
    assert "RENSHU_CACHE" in found["cache"].advice


def test_systems_that_do_not_say_how_much_memory_is_free(model, monkeypatch):
    monkeypatch.setattr(doctor, "free_memory", lambda: None)
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert by_name(diagnose(model))["memory"].state == "ok"
    assert doctor.usable_cpus() >= 1


@pytest.mark.parametrize(("good", "code"), [(True, 0), (False, 1)])
def test_the_verb_exits_by_the_verdict(model, monkeypatch, capsys, good, code):
    name = model if good else model + "-missing"
    monkeypatch.setattr(sys, "argv", ["renshu", "doctor", "--json", "--model", name])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0) == code
    rows = json.loads(capsys.readouterr().out)
    assert set(rows[0]) == {"name", "state", "text", "advice"}
    monkeypatch.setattr(sys, "argv", ["renshu", "doctor", "--model", name])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().out
    assert shown.startswith("ok   python    Python 3.")
    assert ("fail model " in shown) is not good
