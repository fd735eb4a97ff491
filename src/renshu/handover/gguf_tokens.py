"""A tokenizer as llama.cpp reads it from a GGUF file, and proof that it gives the same ids.

llama.cpp has no regular expressions of its own in the file, but names for those it knows. The name is chosen
here as llama.cpp's converter does: by what it gives, on texts in which the known ones differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from renshu.errors import ModelError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
SPLITS = {  # llama.cpp's name → expressions that cut a text, one after another (src/llama-vocab.cpp)
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_CONTRACTIONS + _WORDS % r"\p{N}{1,3}",),
    "qwen2": (_CONTRACTIONS + _WORDS % r"\p{N}",),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
}
WHOLE_WORDS = {"llama-bpe"}  # a word that is a token needs no merges
TEXTS = (
    'Hello, world! {"name": "look_up", "arguments": {"days": 12, "city": "São Paulo"}}',
    "I'll pay $1,234,567.89 on 2024-07-26; we've 007 of 10000000. DON'T shout, it's 3pm.",
    "  two  spaces\n\n\nthree lines\r\n\ttab\t\ttabs   \n    def f(x):\n        return x**2 # end  ",
    "天気はどうですか。練習、練習！Привет мир, Ελλάδα, שלום, العربية, हिन्दी, ไทย, 한국어 🙂👩‍💻 ½ ² Ⅷ ١٢٣",
    "if (a == b) {\n    return f(x),\n        (y);\n}\n\n/* one, */\n$total -> [i]:\n- item\n-- \n---\n\n\n",
    "https://example.org/a_b?c=d&e=%20f#g <|im_end|> </tool_call> a.b,c;d:e(f)[g]{h} ...--- ~~~ \\n",
)
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama.cpp's types of tokens


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of a byte-level BPE tokenizer.

    tokens: the text of every id; of normal ones in GPT-2's spelling of bytes. types: of each. merges: pairs,
    the first merged first. split: llama.cpp's name of how texts are cut. adds_bos: whether `bos` is put
    before a text.
    """

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[tuple[str, str], ...]
    split: str
    bos: int | None
    pad: int | None
    adds_bos: bool

    def ids(self, text: str) -> list[int]:
        """The ids of a text as llama.cpp finds them: added tokens first, the longest ones before others."""
        parts: list[str | int] = [text]
        for token, number in self._added:
            parts = [piece for part in parts for piece in _cut(part, token, number)]
        return [
            number
            for part in parts
            for number in ([part] if isinstance(part, int) else self._words.encode(part).ids)
        ]

    @cached_property
    def _added(self) -> list[tuple[str, int]]:
        added = [
            (token, number)
            for number, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (CONTROL, USER_DEFINED)
        ]
        return sorted(added, key=lambda pair: -len(pair[0].encode()))

    @cached_property
    def _words(self) -> Tokenizer:
        vocabulary = {token: number for number, token in enumerate(self.tokens)}
        merged = models.BPE(vocabulary, list(self.merges), ignore_merges=self.split in WHOLE_WORDS)
        words = Tokenizer(merged)
        cuts = [pre_tokenizers.Split(Regex(text), "isolated") for text in SPLITS[self.split]]
        words.pre_tokenizer = pre_tokenizers.Sequence(
            [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        return words


def _cut(part: str | int, token: str, number: int) -> Iterable[str | int]:
    """A piece of text with every occurrence of a token replaced by its id."""
    if isinstance(part, int):
        return [part]
    pieces: list[str | int] = []
    for text in part.split(token):
        pieces += [number, text] if pieces else [text]
    return [piece for piece in pieces if piece != ""]


def vocabulary(tokenizer: Any, size: int, prompts: Sequence[Sequence[int]]) -> Vocabulary:
    """The vocabulary of a transformers tokenizer, filled up to `size`, the rows of the embedding.

    prompts: ids of dialogues, on which llama.cpp must give the same, as on `TEXTS`. Raises ModelError for
    other tokenizers than byte-level BPE, and where none of llama.cpp's ways to cut texts gives the same.
    """
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    _require_byte_level(described)
    added = {int(entry["id"]): entry for entry in described["added_tokens"]}
    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    tokens = [by_id.get(number, f"[PAD{number}]") for number in range(size)]
    types = [NORMAL if number in by_id else UNUSED for number in range(size)]
    for number, entry in added.items():
        tokens[number], types[number] = entry["content"], CONTROL if entry["special"] else USER_DEFINED
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in described["model"]["merges"]]
    texts = [(text, tokenizer(text, add_special_tokens=False)["input_ids"]) for text in TEXTS]
    texts += [(tokenizer.decode(ids, clean_up_tokenization_spaces=False), list(ids)) for ids in prompts]
    for split in SPLITS:
        candidate = Vocabulary(
            tuple(tokens),
            tuple(types),
            tuple((left, right) for left, right in pairs),
            split,
            tokenizer.bos_token_id,
            tokenizer.pad_token_id,
            tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id],
        )
        if all(candidate.ids(text) == ids for text, ids in texts):
            return candidate
    raise ModelError(
        "llama.cpp would cut texts otherwise than this tokenizer: of the ways it knows, none of "
        f"{', '.join(SPLITS)} gives the same ids; use --to hf"
    )


def _require_byte_level(described: dict[str, Any]) -> None:
    model, normalizer = described["model"], described["normalizer"]
    decoder = described["decoder"] or {}
    if model["type"] != "BPE" or model.get("byte_fallback") or decoder.get("type") != "ByteLevel":
        raise ModelError(
            "only byte-level BPE tokenizers (GPT-2's kind) are written into GGUF files; convert the folder "
            "of --to hf with llama.cpp's convert_hf_to_gguf.py"
        )
    if normalizer is not None and normalizer["type"] != "NFC":  # which llama.cpp leaves to whoever types
        raise ModelError(f"llama.cpp does not normalise texts as this tokenizer does ({normalizer['type']})")
    for entry in described["added_tokens"]:
        if entry["lstrip"] or entry["rstrip"] or entry["single_word"]:
            raise ModelError(f"llama.cpp does not strip blanks around {entry['content']!r}: use --to hf")
