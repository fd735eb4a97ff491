"""GGUF files read back by transformers: the same logits, ids and template; llama.cpp's tokenizer by hand."""

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GemmaConfig,
    GemmaForCausalLM,
    GgufConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from chat_tokenizers import byte_level, metaspace
from renshu.chat import ChatFormat
from renshu.envs import Interaction
from renshu.envs.flights import FlightDesk
from renshu.errors import ModelError
from renshu.handover import gguf_file
from renshu.handover.gguf_file import Spoken, neighbours, read_back, require_exportable, slowed, write
from renshu.handover.gguf_tokens import CONTROL, NORMAL, TEXTS, USER_DEFINED, Vocabulary, vocabulary
from renshu.models.load import load
from renshu.models.settings import ModelSettings
from renshu.types import Message, ToolCall
from tiny_models import qwen_template

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
IDS = torch.tensor([[5, 3, 7, 2, 9, 9, 4, 1]])


@pytest.fixture(scope="module")
def spoken():
    tokenizer = byte_level()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    return Spoken(vocabulary(tokenizer, len(tokenizer) + 3, []), qwen_template(), end)


def made(kind, **changes):
    """A random model whose biases are no zeros."""
    torch.manual_seed(0)
    config = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}[kind](
        vocab_size=len(byte_level()) + 3, **(SMALL | changes)
    )
    model = {"llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM, "qwen3": Qwen3ForCausalLM}[kind](config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(std=0.5)
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


MODELS = {
    "llama": ("llama", {}),
    "llama with biases, tied": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama, wide heads": ("llama", {"head_dim": 32}),
    "llama, linear rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
}


@pytest.mark.parametrize("name", MODELS)
def test_read_back_the_logits_are_the_same(tmp_path, spoken, name):
    kind, changes = MODELS[name]
    model = made(kind, **changes)
    write(tmp_path / "model.gguf", model, spoken, "float32", "tiny")
    torch.testing.assert_close(
        logits(read_back(tmp_path / "model.gguf", model)), logits(model), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(("dtype", "most"), [("float16", 1e-3), ("bfloat16", 1e-2), ("q8_0", 2e-2)])
def test_narrow_files_hold_rounded_matrices_and_whole_vectors(tmp_path, spoken, dtype, most):
    model = made("qwen2")
    write(tmp_path / "model.gguf", model, spoken, dtype, "tiny")
    again = read_back(tmp_path / "model.gguf", model)
    assert 0 < (logits(again) - logits(model)).abs().max() < most
    if dtype != "q8_0":
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data = parameter.data.to(getattr(torch, dtype)).float()
        torch.testing.assert_close(logits(again), logits(model), atol=1e-6, rtol=1e-6)


def test_rows_that_no_block_fits_are_float16_in_q8_0(tmp_path, spoken):
    model = made("llama", hidden_size=48, num_attention_heads=2, num_key_value_heads=1)
    write(tmp_path / "model.gguf", model, spoken, "q8_0", "tiny")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds["blk.0.attn_q.weight"] == "F16"  # 48 columns
    assert kinds["blk.0.ffn_down.weight"] == "Q8_0"  # 96 columns
    assert kinds["output_norm.weight"] == "F32"


def test_the_file_alone_says_everything_of_a_plain_llama(tmp_path, spoken):
    model = made("llama")
    write(tmp_path / "model.gguf", model, spoken, "float32", "tiny")
    place = {"pretrained_model_name_or_path": str(tmp_path), "gguf_file": "model.gguf"}
    options = {"quantization_config": GgufConfig(dequantize=True), "dtype": torch.float32}
    torch.testing.assert_close(
        logits(AutoModelForCausalLM.from_pretrained(**place, **options)), logits(model), atol=1e-5, rtol=1e-5
    )
    tokenizer, trained = AutoTokenizer.from_pretrained(**place), byte_level()
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == trained(text)["input_ids"]
    assert tokenizer.eos_token == "<|im_end|>"
    trained.chat_template = qwen_template()
    chat = ChatFormat(trained)
    opening = Interaction(FlightDesk(), FlightDesk.tasks.split("test")[0])
    messages = [{"role": m.role, "content": m.content} for m in opening.messages]
    call = {"type": "function", "function": {"name": "calendar", "arguments": {"day": "next Friday"}}}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "no"},
    ]
    same = [
        *opening.messages,
        Message("assistant", tool_calls=(ToolCall("calendar", {"day": "next Friday"}),)),
    ]
    rendered = tokenizer.apply_chat_template(
        messages, tools=opening.schemas, add_generation_prompt=True, tokenize=False
    )
    assert rendered == chat.text([*same, Message("tool", "no")], opening.schemas)


def test_rope_turns_neighbours_in_llama_cpp():
    rows = torch.arange(8.0)  # two heads of four: halves (0, 1), (2, 3)
    assert neighbours(rows, heads=2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_scaled_frequencies_by_hand():
    """Llama 3.1: short waves as they are, long ones slower by the factor; between, a mixture."""
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    model = made("llama", rope_parameters=rope)
    factors = slowed(model).tolist()  # 8 frequencies: wavelengths 2π·10^(k/2)
    assert factors[:2] == pytest.approx([1.0, 1 / ((1 - (s := (64 / 19.869 - 1) / 3)) / 8 + s)], rel=1e-3)
    assert factors[2:] == pytest.approx(
        [1 / ((1 - (s := (64 / 62.832 - 1) / 3)) / 8 + s), *[8.0] * 5], rel=1e-3
    )


def test_the_embedded_tokenizer_is_cut_as_superbpe():
    """Digits apart, and else only merges that never cross a boundary: no cut between words is needed."""
    loaded = load(ModelSettings())
    chat = ChatFormat(loaded.tokenizer, eos_ids=loaded.eos_ids)
    tasks = FlightDesk.tasks.split("test")[:10]
    openings = [Interaction(FlightDesk(), task) for task in tasks]
    prompts = [chat.prompt(opening.messages, opening.schemas) for opening in openings]
    found = vocabulary(loaded.tokenizer, 1536, prompts)
    assert (found.split, found.bos, found.pad, found.adds_bos) == ("superbpe", None, 1509, False)
    assert (found.tokens[1535], found.tokens[1512]) == ("[PAD1535]", "<tool_call>")
    assert [found.ids(TEXTS[0])] == [loaded.tokenizer(TEXTS[0])["input_ids"]]


def split_by(pattern, ignore_merges=False):
    """A tokenizer that merges what stands together, and so shows where texts are cut."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate(alphabet)}
    merges = []
    for left, right in (
        ("1", "2"),
        ("12", "3"),
        ("Ġ", "a"),
        ("a", "b"),
        ("Ġ", "1"),
        ("Ċ", "Ċ"),
        ("-", "-"),
        (",", "Ċ"),
        ("(", "f"),
        ("l", "o"),
    ):
        merges.append((left, right))
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="!")


WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
WORDS += r"|\s*[\r\n]+|\s+(?!\S)|\s+"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", "gpt-2"),
        (WORDS % r"\p{N}{1,3}", "llama-bpe"),
        (WORDS % r"\p{N}", "qwen2"),
    ],
)
def test_ways_of_cutting_are_told_apart_by_what_they_give(pattern, name):
    assert vocabulary(split_by(pattern, ignore_merges=name == "llama-bpe"), 300, []).split == name


def test_a_way_of_cutting_that_llama_cpp_has_not_is_refused():
    with pytest.raises(ModelError, match=r"none of gpt-2, .*superbpe gives the same ids; use --to hf"):
        vocabulary(split_by(r"[\s\S]"), 300, [])


def test_added_tokens_are_found_the_longest_first():
    """transformers takes the leftmost: "ab" and then "cd"."""
    letters = tuple("abcd")
    known = Vocabulary(
        (*letters, "ab", "bcd"), (NORMAL,) * 4 + (USER_DEFINED, CONTROL), (), "gpt-2", None, None, False
    )
    assert known.ids("abcdab") == [0, 5, 4]


def test_tokenizers_of_another_kind_are_refused():
    with pytest.raises(ModelError, match="only byte-level BPE tokenizers"):
        vocabulary(metaspace("first"), 100, [])
    stripping = byte_level(extra=("<x>",))
    stripping = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(stripping.backend_tokenizer.to_str())
    )
    stripping.add_tokens([AddedToken("<y>", lstrip=True)])
    with pytest.raises(ModelError, match="does not strip blanks around '<y>'"):
        vocabulary(stripping, len(stripping), [])


def test_models_that_are_not_known_are_refused_with_a_way_out(monkeypatch):
    gemma = GemmaForCausalLM(GemmaConfig(vocab_size=9, head_dim=8, **SMALL))
    with pytest.raises(ModelError, match=r"only llama, qwen2, qwen3; .*convert_hf_to_gguf\.py"):
        require_exportable(gemma)
    with pytest.raises(ModelError, match="hidden_act=gelu is not written as GGUF"):
        require_exportable(made("llama", hidden_act="gelu"))
    yarn = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    with pytest.raises(ModelError, match=r"rope_parameters=.*yarn"):
        require_exportable(made("llama", rope_parameters=yarn))
    monkeypatch.setattr(gguf_file, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'renshu\[gguf\]'"):
        require_exportable(made("llama"))


def test_a_damaged_file_is_no_traceback(tmp_path):
    (tmp_path / "model.gguf").write_bytes(np.random.default_rng(0).bytes(64))
    with pytest.raises(ModelError, match=r"model\.gguf cannot be read back"):
        read_back(tmp_path / "model.gguf", made("llama"))
