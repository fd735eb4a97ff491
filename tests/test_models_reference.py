"""References: the model as it was, the model below, and what either said once."""

from __future__ import annotations

import copy

import pytest
import torch

from renshu.models import ModelSettings
from renshu.models.load import load
from renshu.models.reference import base_of, cached, present, reference_of
from renshu.tree import token_logprobs
from renshu.types import Row
from tiny_models import qwen_template, save_tiny_model

ROWS = [Row((5, 6, 7, 8 + n), (False, False, True, True), group="g") for n in range(3)]
ROWS.append(Row((9, 8, 7), (False, True, False)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("model"), template=qwen_template()))


def said(model) -> torch.Tensor:
    with torch.no_grad():
        return token_logprobs(model, ROWS, temperature=0.7).logprobs


def move(model) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))


@pytest.mark.parametrize("adapter", [None, {"rank": 2}, {"kind": "dora", "rank": 2}])
def test_a_reference_stays_as_the_model_was_and_leaves_the_model_as_it_is(folder, adapter):
    model = load(ModelSettings.from_dict({"name": folder, "adapter": adapter})).model
    move(model)  # an adapter is a trained one
    before = said(model)
    reference = reference_of(model)
    move(model)
    held = copy.deepcopy(model.state_dict())
    model.train()
    assert torch.equal(reference(ROWS, 0.7), before)
    assert not torch.allclose(said(model), before, atol=1e-3)
    assert model.training
    assert all(torch.equal(value, held[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_pass_that_fails_leaves_the_model_as_it_is(folder, monkeypatch):
    model = load(ModelSettings(name=folder)).model
    reference = reference_of(model)
    move(model)
    held = copy.deepcopy(model.state_dict())
    monkeypatch.setattr("renshu.models.reference.token_logprobs", lambda *given, **named: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reference(ROWS, 1.0)
    assert all(torch.equal(value, held[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("adapter", [None, {"rank": 2}])
def test_the_base_is_the_untrained_model_whatever_was_trained(folder, adapter):
    loaded = load(ModelSettings.from_dict({"name": folder, "adapter": adapter}))
    before = said(loaded.model)
    move(loaded.model)
    assert torch.equal(base_of(loaded)(ROWS, 0.7), before)


def test_what_was_said_once_is_asked_of_each_distinct_row_once(folder):
    model = load(ModelSettings(name=folder)).model
    asked: list[Row] = []
    inner = present(model)

    def counted(rows, temperature):
        asked.extend(rows)
        return inner(rows, temperature)

    again = [Row(ROWS[0].ids, ROWS[0].trained, group="another")]
    reference = cached(counted, [*ROWS, *again], model=model, temperature=0.7, token_budget=8)
    assert len(asked) == len(ROWS)
    expected = said(model)
    move(model)
    torch.testing.assert_close(reference(ROWS, 1.0), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(reference([ROWS[3], *again], 1.0), expected[[6, 0, 1]], atol=1e-6, rtol=0)
    assert len(asked) == len(ROWS)
