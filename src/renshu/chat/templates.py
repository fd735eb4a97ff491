"""Which template a model speaks: its own, one given as text, or the fallback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from renshu.errors import TemplateError

FALLBACK = "fallback"

# ChatML where the tokenizer has its tokens; otherwise plain headers, and the turn ends with EOS. It knows no
# tools: `render` writes tools, calls and results into the messages, as for any template that ignores tools.
_CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
_PLAIN = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '### ' + message.role + ':\\n' + message.content }}"
    "{{- (eos_token if message.role == 'assistant' else '') + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '### assistant:\\n' }}{%- endif %}"
)


def qwen2_5() -> str:
    """Qwen2.5's chat template, byte for byte (see qwen2_5.NOTICE)."""
    return (Path(__file__).parent / "qwen2_5.jinja").read_text(encoding="utf-8")


def choose(tokenizer: Any, template: str | None) -> str:
    """The Jinja source to use. Raises TemplateError if there is none and the fallback was not asked for."""
    if template == FALLBACK:
        return _fallback(tokenizer)
    if template is not None:
        return template
    own = getattr(tokenizer, "chat_template", None)
    if isinstance(own, dict):  # several named templates: the tool template is the one that agents need
        own = own.get("tool_use") or own.get("default")
    if not own:
        raise TemplateError(
            "The tokenizer has no chat template: it belongs to a base model, or the template was not saved "
            f"with it. Ask for the built-in one with template={FALLBACK!r}, or give a Jinja template as text."
        )
    return str(own)


def _fallback(tokenizer: Any) -> str:
    if {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.get_added_vocab()):
        return _CHATML
    if not tokenizer.eos_token:
        raise TemplateError(
            "The fallback template needs a token that ends a turn: the tokenizer has no eos_token."
        )
    return _PLAIN
