"""Toy tokenizers and real templates for the tests of `renshu.chat`."""

from functools import cache
from pathlib import Path

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<|python_tag|>"]
SPECIAL += [
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|end|>",
]
SPECIAL += [
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
]
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
CORPUS = [
    "user assistant system tool hello world\n\n\n",
    '{"name": "look_up", "arguments": {"city": "Paris"}}\n',
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n",
]


@cache
def byte_level(
    bos: str | None = None,
    eos: str | None = "<|im_end|>",
    extra: tuple[str, ...] = (),
    special: tuple[str, ...] = tuple(SPECIAL),
) -> PreTrainedTokenizerFast:
    """A byte-level BPE with everybody's special tokens and Qwen's non-special tags; `extra`: more tags."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=list(special), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in (*TAGS, *extra)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, bos_token=bos)


@cache
def metaspace(scheme: str) -> PreTrainedTokenizerFast:
    """A SentencePiece-like BPE, which puts `▁` before the first word, or before every piece."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.BpeTrainer(vocab_size=80, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(["hello world", "</s>\n"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def template(name: str) -> str:
    """A model's own chat template, as TRL keeps it."""
    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text("utf-8")
