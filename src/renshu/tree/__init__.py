"""Token trees: every distinct token of a micro-batch is computed once."""

from renshu.tree.attention import NAME, Attending, attention, register
from renshu.tree.support import prepare, refusal, supports_tree

__all__ = ["NAME", "Attending", "attention", "prepare", "refusal", "register", "supports_tree"]
