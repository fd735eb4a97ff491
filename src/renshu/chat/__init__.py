"""Dialogues ↔ tokens: templates, masks, and strict reading of what a model wrote."""

from renshu.chat.behaviour import Behaviour
from renshu.chat.format import Advance, ChatFormat, Thoughts
from renshu.chat.parse import parse_reply
from renshu.chat.reply import ParseError, Reply
from renshu.chat.templates import FALLBACK, qwen2_5

__all__ = [
    "FALLBACK",
    "Advance",
    "Behaviour",
    "ChatFormat",
    "ParseError",
    "Reply",
    "Thoughts",
    "parse_reply",
    "qwen2_5",
]
