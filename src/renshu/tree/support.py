"""Which models take token trees: decided by asking the model, never by its name."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from renshu.errors import UnsupportedAttention
from renshu.tree.attention import NAME, cap, register, softmax

# Two rows, 5 3 7 2 and 5 3 4 6, as a tree: depths and parents of its six nodes. Ids count from the middle of
# the vocabulary: control tokens, at its ends, blow activations up until rounding looks like another answer.
_IDS = (5, 3, 7, 2, 4, 6)
_DEPTHS = (0, 1, 2, 3, 2, 3)
_PARENTS = (-1, 0, 1, 2, 1, 4)
_PATHS = ((0, 1, 2, 3), (0, 1, 4, 5))

_refusals: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()  # None: the model takes trees


def prepare(model: Any) -> bool:
    """Switch a transformers model (bare or wrapped by PEFT) to Renshu's attention if it takes token trees.

    The first call tries a tree of six tokens and compares its logits with what the model's own attention says
    of the two rows it holds. A model that is stateful, passes unknown arguments to its attention or answers
    otherwise keeps its own; all later calls return the same verdict. Returns `supports_tree(model)`.
    """
    base = bare(model)
    if base not in _refusals:
        _refusals[base] = _try(base)
    elif _refusals[base] is None and base.config._attn_implementation != NAME:
        # Somebody switched it back; the other functions would ignore `tree=` silently.
        base.set_attn_implementation(NAME)
    return _refusals[base] is None


def supports_tree(model: Any) -> bool:
    """Whether the model takes token trees. Prepares it at the first call."""
    return prepare(model)


def refusal(model: Any) -> str | None:
    """Why the model takes no token trees, or None if it does."""
    prepare(model)
    return _refusals[bare(model)]


def bare(model: Any) -> Any:
    """The transformers model inside wrappers."""
    model = getattr(model, "module", model)  # DistributedDataParallel
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _try(model: Any) -> str | None:
    if getattr(model, "_is_stateful", False):
        return f"{type(model).__name__} keeps a recurrent state, which does not fork within one forward pass"
    if not model._can_set_attn_implementation():
        return f"{type(model).__name__} does not call its attention through transformers' interface"
    register()
    training, before = model.training, model.config._attn_implementation
    model.eval()
    try:
        reason = _probe(model)
    except (UnsupportedAttention, AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(model).__name__} cannot be called with a token tree: {error}"
    finally:
        model.train(training)
    if reason is not None:
        model.set_attn_implementation(before)
    return reason


@torch.no_grad()
def _probe(model: Any) -> str | None:
    name, device = type(model).__name__, model.get_input_embeddings().weight.device
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = (torch.tensor([_IDS], device=device) + vocabulary // 2) % vocabulary
    depths = torch.tensor([_DEPTHS], device=device)
    rows = ids[0][torch.tensor(_PATHS, device=device)]  # (2, 4)
    expected = model(input_ids=rows, use_cache=False).logits.float()
    model.set_attn_implementation(NAME)
    tree = _DenseTree()
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
    logits = model(input_ids=ids, position_ids=depths, attention_mask=mask, tree=tree, use_cache=False).logits
    config = model.config.get_text_config()
    if sorted(tree.windows) != list(range(config.num_hidden_layers)):
        return f"{name} has layers that do not call the attention function"
    if not _windows_known(config, tree.windows):
        return f"{name} limits what its layers see in a way it does not tell the attention function"
    found = logits[0].float()[torch.tensor(_PATHS, device=device)]
    rough = logits.dtype in (torch.float16, torch.bfloat16)  # of the products, also in mixed precision
    difference = (found - expected).abs().max() / expected.std()
    if not difference < (0.1 if rough else 1e-3):
        return f"{name} answers a token tree otherwise than its rows (relative difference {difference:.1e})"
    return None


def _windows_known(config: Any, windows: dict[int, int | None]) -> bool:
    """Whether the window each layer passed is the one its configuration promises."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        passed = {"full_attention": False, "sliding_attention": True}
        return all(passed.get(kind) is (windows[layer] is not None) for layer, kind in enumerate(kinds))
    promised = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return not promised or any(window is not None for window in windows.values())


class _DenseTree:
    """The probe's tree, with an explicit mask: affordable for six tokens, and independent of the real one."""

    def __init__(self) -> None:
        self.windows: dict[int, int | None] = {}
        self.mask = torch.zeros(len(_IDS), len(_IDS), dtype=torch.bool)
        for node in range(len(_IDS)):
            ancestor = node
            while ancestor >= 0:
                self.mask[node, ancestor] = True
                ancestor = _PARENTS[ancestor]

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
        self.windows[layer] = window
        depth = torch.tensor(_DEPTHS)
        mask = self.mask if window is None else self.mask & (depth[:, None] - depth[None, :] < window)
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        scores = cap(query @ key.transpose(-1, -2) * scale, softcap)
        weights = softmax(scores.masked_fill(~mask.to(scores.device), float("-inf")))
        return (weights @ value).transpose(1, 2)
