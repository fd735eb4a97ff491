"""Builds the embedded model's tokenizer: byte-level BPE, single digits, Qwen2.5's template.

Words, digits and runs of everything else are cut apart before merging, so that a word has the same tokens
after a space as after a quote: a tiny model copies `Tokyo` from a sentence into JSON token by token. The
fixed paragraphs of the tools section and the joints of a JSON schema are one token each; they are text, not
control tokens.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dialogues import TOOLS_AFTER, TOOLS_BEFORE, ask_task, list_task, pick_task

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>"]
JOINTS = [
    TOOLS_BEFORE,
    TOOLS_AFTER,
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {"',
    '": {"type": "string", "description": "',
    '": {"type": "string"}',
    '"}, "',
    '}, "required": ["',
    '"]}}}',
    '\n{"name": "',
    '": {"type": "string", "enum": ["',
    '": {"type": "array", "items": {"type": "string", "enum": ["',
    '"], "default": "',
    '"], "description": "',
    '"]}, "description": "',
    '", "arguments": {"',
    '"}}\n',
]
VOCABULARY = 1536


def corpus() -> list[str]:
    rng = Random(7)
    texts = []
    for _ in range(3000):
        drawn = (pick_task(rng, 6), ask_task(rng), list_task(rng))
        texts += ["".join(text for text, _ in pieces) for pieces in drawn]
    prose = "\n".join(pydoc_data.topics.topics.values())
    return [*texts, *[prose[i : i + 4000] for i in range(0, min(len(prose), 400_000), 4000)]]


def build(folder: Path, template: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}|[\p{L}\p{M}]+|\n|[^\p{L}\p{M}\p{N}\n]+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    fixed = len(CONTROL) + len(TAGS) + len(JOINTS)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - fixed,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=4,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in (*TAGS, *JOINTS)])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
        chat_template=template,
    )
    wrapped.save_pretrained(folder)
    return wrapped


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "build")
    template = (Path(__file__).parent.parent / "src/renshu/chat/qwen2_5.jinja").read_text()
    print(len(build(parser.parse_args().out, template)), "tokens")
