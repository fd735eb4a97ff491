"""The tree's log-probs and gradient are those of separate rows, on 14 architectures; and we would notice."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from renshu.errors import DataError
from renshu.tree import TokenTree, forward, prepare, refusal, supports_tree, tiles, token_logprobs
from renshu.types import Row
from tree_zoo import TREE, build, distance, gradient, random_rows

ROWS = random_rows()


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that these rows fill many tiles, and branch within and between them."""
    monkeypatch.setattr(tiles, "TILE", 16)


def row_by_row(model: Any, rows: list[Row], temperature: float) -> torch.Tensor:
    """The oracle: one plain forward a row, with transformers' eager attention and nothing of ours."""
    found = []
    for row in rows:
        logits = model(input_ids=torch.tensor([row.ids]), use_cache=False).logits[0] / temperature
        logprobs = logits.log_softmax(-1)
        found += [logprobs[at - 1, row.ids[at]] for at, trained in enumerate(row.trained) if trained]
    return torch.stack(found)


@pytest.mark.parametrize("name", TREE)
def test_logprobs_and_gradient_are_those_of_separate_rows(name: str) -> None:
    model = build(name)
    model.set_attn_implementation("eager")
    expected = row_by_row(model, ROWS, temperature=0.7)
    (expected @ torch.cos(torch.arange(len(expected), dtype=expected.dtype))).backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert supports_tree(model), refusal(model)
    for layout in ("tree", "padded"):
        logprobs, found = gradient(model, ROWS, layout)
        torch.testing.assert_close(logprobs, expected.detach(), rtol=0, atol=1e-5)
        assert distance(found, wanted) < 1e-5


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral"])
def test_float32_with_entropy(name: str) -> None:
    model = build(name, torch.float32)
    (expected, wanted), (logprobs, found) = (
        gradient(model, ROWS, x, entropy=True) for x in ("padded", "tree")
    )
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-4)
    assert distance(found, wanted) < 1e-5


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_a_broken_ancestor_mask_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every branch also shows its last node to the node stored after it, which is no descendant."""
    model = build(name)
    _, wanted = gradient(model, ROWS, "padded")

    class Broken(TokenTree):
        @classmethod
        def build(cls, rows: Any) -> TokenTree:
            tree = TokenTree.build(rows)
            return dataclasses.replace(tree, ends=(tree.ends + 1).clip(max=len(tree)))

    monkeypatch.setattr(forward, "TokenTree", Broken)
    _, found = gradient(model, ROWS, "tree")
    assert distance(found, wanted) > 1e-3


def test_a_window_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("mistral")
    _, wanted = gradient(model, ROWS, "padded")
    make = tiles._batches
    monkeypatch.setattr(tiles, "_batches", lambda tree, window: make(tree, None))
    _, found = gradient(model, ROWS, "tree")
    assert distance(found, wanted) > 1e-3


tokens = st.lists(st.integers(3, 5), min_size=2, max_size=9)
tries = st.lists(tokens, min_size=1, max_size=7)


@settings(max_examples=15)
@given(tries=tries, size=st.sampled_from([1, 3, 4]))
def test_random_tries(tries: list[list[int]], size: int) -> None:
    """Any set of rows and any tile: one token to a whole row a tile."""
    rows = [Row(tuple(ids), (False, *(True,) * (len(ids) - 1))) for ids in tries]
    model = build("gemma2", num_hidden_layers=2, sliding_window=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE", size)
        (expected, wanted), (logprobs, found) = (gradient(model, rows, x) for x in ("padded", "tree"))
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-5)
    assert (found - wanted).norm() <= 1e-5 * wanted.norm() + 1e-9


def test_gradient_checkpointing_recomputes_with_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("gemma2")
    _, wanted = gradient(model, ROWS, "tree")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    calls = []
    attend = tiles.TreeAttention.attend
    monkeypatch.setattr(
        tiles.TreeAttention, "attend", lambda self, **kw: (calls.append(kw["layer"]), attend(self, **kw))[1]
    )
    _, found = gradient(model, ROWS, "tree")
    assert sorted(calls) == [0, 0, 1, 1]  # once forward, once recomputed
    assert distance(found, wanted) < 1e-9


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dora", [False, True])
def test_lora(checkpointing: bool, dora: bool) -> None:
    from peft import LoraConfig, get_peft_model

    base = build("llama")
    config = LoraConfig(r=4, target_modules="all-linear", use_dora=dora, task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first: every gradient of A would be zero
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
        model.train()
    assert prepare(model)
    (expected, wanted), (logprobs, found) = (gradient(model, ROWS, x) for x in ("padded", "tree"))
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-5)
    assert distance(found, wanted) < 1e-5
    assert all(p.grad is None for name, p in model.named_parameters() if "lora" not in name)


def test_computed_tokens_are_the_distinct_ones() -> None:
    """Counted at the embedding layer, against a brute-force trie."""
    model = build("llama")
    prepare(model)
    seen = []
    model.get_input_embeddings().register_forward_hook(lambda module, args, out: seen.append(args[0].numel()))
    found = token_logprobs(model, ROWS)
    prefixes = {row.ids[:end] for row in ROWS for end in range(1, len(row.ids) + 1)}
    naive = sum(len(row.ids) for row in ROWS)
    assert (seen, found.computed, found.naive) == ([len(prefixes)], len(prefixes), naive)
    padded = token_logprobs(model, ROWS, layout="padded")
    assert padded.computed == len(ROWS) * max(len(row.ids) for row in ROWS) == seen[1]


def test_rows_without_trained_tokens_are_an_error() -> None:
    with pytest.raises(DataError, match="none of the 1 rows has a trained token"):
        token_logprobs(build("llama"), [Row((5, 6), (False, False))])
