"""Token trees: every distinct token of a micro-batch is computed once."""

from renshu.tree.attention import NAME, Attending, attention, register
from renshu.tree.forward import TokenLogprobs, token_logprobs, token_states
from renshu.tree.packing import pack
from renshu.tree.support import prepare, refusal, supports_tree
from renshu.tree.tiles import TreeAttention
from renshu.tree.trie import TokenTree

__all__ = [
    "NAME",
    "Attending",
    "TokenLogprobs",
    "TokenTree",
    "TreeAttention",
    "attention",
    "pack",
    "prepare",
    "refusal",
    "register",
    "supports_tree",
    "token_logprobs",
    "token_states",
]
