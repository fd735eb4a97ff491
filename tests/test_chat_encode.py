"""Control tokens come from the template; whoever else writes one has written text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_tokenizers import SPECIAL, TAGS, byte_level, metaspace
from renshu.chat.encode import SENTINEL, Encoder, unguard

TOKENIZER = byte_level()
ENCODER = Encoder(TOKENIZER)
PIECES = st.lists(
    st.sampled_from([*SPECIAL, *TAGS, "\n", "\n\n", " ", "hi", "天", "<|im", "_end|>", "<", SENTINEL]),
    max_size=8,
).map("".join)


def decoded(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def control_ids() -> set[int]:
    return set(TOKENIZER.convert_tokens_to_ids(SPECIAL))


def test_control_tokens_are_the_special_ones_and_tags_are_text() -> None:
    assert frozenset(SPECIAL) == ENCODER.control


@settings(max_examples=200, deadline=None)
@given(template=PIECES.filter(lambda text: SENTINEL not in text))
def test_chunks_are_encoded_as_the_whole(template: str) -> None:
    assert ENCODER.encode(template) == TOKENIZER.encode(template, add_special_tokens=False)


@settings(max_examples=200, deadline=None)
@given(foreign=PIECES)
def test_guarded_text_has_no_control_token_and_keeps_every_letter(foreign: str) -> None:
    ids = ENCODER.encode(ENCODER.guard(foreign))
    assert not control_ids() & set(ids)
    assert decoded(ids) == foreign
    assert unguard(ENCODER.guard(foreign)) == foreign


@settings(max_examples=100, deadline=None)
@given(before=PIECES, foreign=PIECES, after=PIECES)
def test_only_the_templates_own_control_tokens_count(before: str, foreign: str, after: str) -> None:
    before, after = (text.replace(SENTINEL, "") for text in (before, after))
    text = f"<|im_start|>{before}<|im_end|>{ENCODER.guard(foreign)}<|im_end|>{after}"
    ids = ENCODER.encode(text)
    expected = TOKENIZER.encode(f"<|im_start|>{before}<|im_end|><|im_end|>{after}", add_special_tokens=False)
    assert [i for i in ids if i in control_ids()] == [i for i in expected if i in control_ids()]
    assert decoded(ids) == f"<|im_start|>{before}<|im_end|>{foreign}<|im_end|>{after}"


def test_the_ids_before_a_written_control_token_do_not_move() -> None:
    """Or an earlier prompt would not be a prefix of the next."""
    start = "<|im_start|>user\nhello world"
    ids = ENCODER.encode(f"{start} {ENCODER.guard('<|im_end|>')}<|im_end|>")
    plain = TOKENIZER.encode(start, add_special_tokens=False)
    assert ids[: len(plain)] == plain


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_sentencepiece_prefix_spaces(scheme: str) -> None:
    """Text behind a cut gets no space of its own, and chunks are encoded as the whole."""
    tokenizer = metaspace(scheme)
    encoder = Encoder(tokenizer)
    for text in ("<s>hello world</s>\n<s>hello", "hello</s> world"):
        assert encoder.encode(text) == tokenizer.encode(text, add_special_tokens=False)
    ids = encoder.encode("<s>" + encoder.guard("hello</s>world") + "</s>")
    assert tokenizer.convert_tokens_to_ids("</s>") not in ids[:-1]
    assert (
        "".join(tokenizer.convert_ids_to_tokens(ids)).lstrip("▁").replace("▁", "") == "<s>hello</s>world</s>"
    )
    assert "▁/" not in "".join(tokenizer.convert_ids_to_tokens(ids))


def test_non_special_control_tokens_are_guarded_too() -> None:
    tokenizer = byte_level(extra=("<|chat|>",))
    encoder = Encoder(tokenizer)
    assert tokenizer.convert_tokens_to_ids("<|chat|>") not in encoder.encode(encoder.guard("a<|chat|>b"))
    assert tokenizer.convert_tokens_to_ids("<|chat|>") in encoder.encode("a<|chat|>b")


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert ENCODER.guard("a\ud83db\udc00") == "a?b?"
    assert ENCODER.guard("\U0001f600") == "\U0001f600"
    assert ENCODER.encode(ENCODER.guard("a\ud83d")) == ENCODER.encode("a?")
