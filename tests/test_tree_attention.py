"""The registered attention function: ordinary calls, refusals, and which models take trees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from renshu.errors import UnsupportedAttention
from renshu.tree import attention, prepare, refusal, supports_tree, token_logprobs
from renshu.tree import support as support_module
from tree_zoo import PADDED, TREE, build, random_rows

ROWS = random_rows(count=4)
IDS = torch.tensor([[0, 0, 0, 5, 8, 13, 21, 34], [4, 5, 6, 7, 9, 9, 12, 3]])
MASK = (torch.arange(8) >= torch.tensor([[3], [0]])).long()


@pytest.mark.parametrize("name", TREE)
def test_ordinary_calls_keep_their_padding(name: str) -> None:
    """Left-padded, as in generation: the row's logits are those it has alone under its own attention."""
    model = build(name).eval()
    model.set_attn_implementation("eager")
    alone = model(input_ids=IDS[:1, 3:]).logits[0]
    assert prepare(model), refusal(model)
    positions = (MASK.cumsum(-1) - 1).clip(min=0)
    padded = model(input_ids=IDS, attention_mask=MASK, position_ids=positions).logits[0, 3:]
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(model(input_ids=IDS[:1, 3:]).logits[0], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_generate_is_unchanged(name: str) -> None:
    """Prefill and cached steps, past the sliding window of 5, one row padded."""
    model = build(name, torch.float32).eval()
    model.set_attn_implementation("eager")
    settings: dict[str, Any] = {
        "attention_mask": MASK,
        "max_new_tokens": 8,
        "do_sample": False,
        "eos_token_id": 66,
    }
    expected = model.generate(IDS, **settings)
    assert prepare(model)
    assert torch.equal(model.generate(IDS, **settings), expected)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_padding_that_sees_nothing_spoils_no_gradient(name: str) -> None:
    model = build(name)
    prepare(model)
    model(input_ids=IDS, attention_mask=MASK).logits[MASK.bool()].sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("tree", [None, object()])
@pytest.mark.parametrize("argument", ["s_aux", "position_bias", "head_mask", "is_causal"])
def test_unknown_arguments_are_refused(argument: str, tree: Any) -> None:
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(UnsupportedAttention, match=f"Linear passes {argument} to its attention"):
        attention(nn.Linear(1, 1), q, q, q, None, tree=tree, **{argument: False})


def test_arguments_that_change_nothing_are_accepted() -> None:
    q = torch.randn(1, 2, 3, 4)
    plain = attention(nn.Linear(1, 1), q, q, q, None)[0]
    extra: dict[str, Any] = {
        "position_ids": torch.arange(3),
        "use_cache": False,
        "s_aux": None,
        "is_causal": True,
    }
    assert torch.equal(attention(nn.Linear(1, 1), q, q, q, None, **extra)[0], plain)
    # By hand: the first position of causal attention returns its own value.
    torch.testing.assert_close(plain[0, 0], q[0, :, 0])


def test_attention_dropout_on_a_tree_is_refused() -> None:
    model = build("llama", attention_dropout=0.1).train()
    with pytest.raises(UnsupportedAttention, match=r"attention dropout 0\.1 .* attention_dropout=0"):
        token_logprobs(model, ROWS)
    assert token_logprobs(model.eval(), ROWS).computed < token_logprobs(model, ROWS).naive


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mamba", "recurrent state"),
        ("qwen3.5", "recurrent state"),
        ("gpt-oss", "s_aux"),
        ("llama4", "limits what its layers see"),
    ],
)
def test_models_that_take_no_tree_take_the_padded_layout(name: str, reason: str) -> None:
    model = build(name, torch.float32)
    before = model.config._attn_implementation
    assert not supports_tree(model)
    assert reason in str(refusal(model))
    assert model.config._attn_implementation == before
    found = token_logprobs(model, ROWS)
    assert found.computed == len(ROWS) * max(len(row.ids) for row in ROWS)
    expected = []
    for row in ROWS:
        logprobs = model(input_ids=torch.tensor([row.ids]), use_cache=False).logits[0].log_softmax(-1)
        expected += [logprobs[at - 1, row.ids[at]] for at, trained in enumerate(row.trained) if trained]
    torch.testing.assert_close(found.logprobs, torch.stack(expected), rtol=0, atol=2e-3)
    with pytest.raises(UnsupportedAttention, match='use layout="padded"'):
        token_logprobs(model, ROWS, layout="tree")


def test_the_zoo_of_refusals_is_complete() -> None:
    assert set(PADDED) == {"mamba", "qwen3.5", "gpt-oss", "llama4"}


@pytest.mark.parametrize("name", TREE)
def test_the_probe_notices_a_model_that_answers_a_tree_otherwise(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask that lets the second branch see the first."""
    monkeypatch.setattr(support_module, "_PARENTS", (-1, 0, 1, 2, 3, 4))
    assert "otherwise than its rows" in str(refusal(build(name, torch.float32)))


def test_wrappers_and_second_thoughts() -> None:
    model = build("llama")
    training = model.training
    assert prepare(torch.nn.DataParallel(model))
    assert model.training is training
    assert model.config._attn_implementation == "renshu"
    model.set_attn_implementation("sdpa")  # would ignore `tree=` and let every token see every other
    assert supports_tree(model)
    assert model.config._attn_implementation == "renshu"
