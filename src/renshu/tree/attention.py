"""The one attention function of Renshu, for training on token trees, for decoding, and for ordinary calls.

It is registered with transformers under the name `"renshu"`. A model switched to it (`renshu.tree.prepare`)
behaves as with SDPA until it is called with the keyword `tree=`: an object that implements `Attending`. Every
layer then hands its queries, keys and values to that object, which alone knows which keys a query may see.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from renshu.errors import UnsupportedAttention

NAME = "renshu"

# Keywords that models pass on to every layer and that change nothing here: positions are already in the
# rotated queries and keys, and the others ask for outputs or caches.
_HARMLESS = frozenset(
    {
        "position_ids",
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "num_items_in_batch",
    }
)


class Attending(Protocol):
    """What a `tree=` keyword must be: the owner of a layer's keys and values."""

    def attend(
        self,
        *,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Attend from each query to the keys of its own past, itself included.

        query: (1, H, L, D); key: (1, K, L, D) and value: (1, K, L, V) of the same L tokens; K divides H.
        scale: factor of the scores. window: a query at depth d sees depths d - window + 1 to d (None: all).
        softcap: scores become `softcap * tanh(scores / softcap)` (None: unchanged).
        Returns (1, L, H, V).
        """
        ...


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    tree: Attending | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls in every layer (`AttentionInterface`).

    query: (B, H, L, D); key: (B, K, S, D); value: (B, K, S, V). Returns (B, L, H, V) and None.
    Raises UnsupportedAttention for any argument it does not implement (sinks, position biases, ...).
    """
    _refuse_unknown(module, rest)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if tree is None:
        if softcap is not None:
            return _softcapped(module, query, key, value, attention_mask, scale, dropout, softcap), None
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        output: Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scale, is_causal=rest.get("is_causal")
        )[0]
        return output, None
    if dropout:
        raise UnsupportedAttention(
            f"attention dropout {dropout} in {type(module).__name__} cannot be applied to a token tree, "
            'whose tokens several rows share: load the model with attention_dropout=0 or use layout="padded"'
        )
    layer: int = module.layer_idx  # type: ignore[assignment]
    output = tree.attend(
        layer=layer, query=query, key=key, value=value, scale=scale, window=sliding_window, softcap=softcap
    )
    return output, None


def register() -> None:
    """Make `"renshu"` known to transformers: the function, and SDPA's masks for ordinary calls. Idempotent.

    Without a registered mask transformers builds none, and padded calls would silently attend to padding.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last dimension, in float32 at least; same dtype as `scores`."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, dim=-1, dtype=wide).to(scores.dtype)


def cap(scores: Tensor, softcap: float | None) -> Tensor:
    """Gemma 2's soft cap of attention scores (None: unchanged)."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _refuse_unknown(module: nn.Module, rest: dict[str, Any]) -> None:
    unknown = [name for name, value in rest.items() if value is not None and name not in _HARMLESS]
    if rest.get("is_causal") is True:
        unknown.remove("is_causal")
    if unknown:
        raise UnsupportedAttention(
            f"{type(module).__name__} passes {', '.join(sorted(unknown))} to its attention, which Renshu's "
            "does not implement: use the padded layout and the reference engine for this model"
        )


def _softcapped(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout: float,
    softcap: float,
) -> Tensor:
    """Ordinary attention with soft-capped scores, which SDPA cannot do; shapes as in `attention`."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = cap(query @ key.transpose(-1, -2) * scale, softcap)  # (B, H, L, S)
    length, past = scores.shape[-2:]
    if mask is None and length > 1:  # transformers leaves out the mask where it is plainly causal
        mask = torch.ones(length, past, dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    # A padded query may see nothing at all: its row of -inf must not become NaN and spoil the gradient.
    weights = softmax(scores.masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0))
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous()
