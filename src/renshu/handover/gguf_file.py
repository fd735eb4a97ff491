"""Writing a model as one GGUF file, which llama.cpp, Ollama and LM Studio read.

Names of tensors are those of `gguf`'s own map. In Llama's files, the rows of queries and keys lie as RoPE of
llama.cpp rotates them: neighbours, where transformers rotates halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from renshu.errors import ModelError
from renshu.handover.gguf_tokens import Vocabulary

FileType = Literal["float32", "float16", "bfloat16", "q8_0"]
ARCHITECTURES = ("llama", "qwen2", "qwen3")
_TYPES = {  # ours → how tensors are stored, and what the file is called as a whole
    "float32": ("F32", "ALL_F32"),
    "float16": ("F16", "MOSTLY_F16"),
    "bfloat16": ("BF16", "MOSTLY_BF16"),
    "q8_0": ("Q8_0", "MOSTLY_Q8_0"),
}
_BLOCK = 32  # values that share a scale in q8_0


@dataclass(frozen=True)
class Spoken:
    """What a model's chat needs: its vocabulary, its template and the id that ends a turn."""

    vocabulary: Vocabulary
    template: str
    turn_end: int


def require_exportable(model: Any) -> None:
    """Raise ModelError for a model that `write` cannot write; before anything is computed."""
    if find_spec("gguf") is None:
        raise ModelError("writing GGUF files needs one more package: pip install 'renshu[gguf]'")
    config = model.config
    if config.model_type not in ARCHITECTURES:
        raise ModelError(
            f"{type(model).__name__} is not written as GGUF, only {', '.join(ARCHITECTURES)}; convert the "
            "folder of --to hf with llama.cpp's convert_hf_to_gguf.py"
        )
    rope = config.rope_parameters
    odd = {
        "hidden_act": config.hidden_act != "silu",
        "rope_parameters": rope["rope_type"] not in ("default", "linear", "llama3"),
        "use_sliding_window": bool(getattr(config, "use_sliding_window", False)),
    }
    for name, is_odd in odd.items():
        if is_odd:
            value = getattr(config, name)
            raise ModelError(f"{name}={value} is not written as GGUF; use --to hf and llama.cpp's converter")


def write(path: Path, model: Any, spoken: Spoken, dtype: FileType, name: str) -> None:
    """Write `model` (float32, whole) to `path`. name: what the file calls it. Raises ModelError as above."""
    require_exportable(model)
    from gguf import GGUFWriter

    writer = GGUFWriter(path, model.config.model_type)
    _describe(writer, model.config, dtype, name)
    _speak(writer, spoken)
    for tensor_name, values in _tensors(model):
        _add(writer, tensor_name, values, dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: Any, dtype: FileType, name: str) -> None:
    from gguf import GGML_QUANT_VERSION, LlamaFileType, RopeScalingType

    head = config.head_dim if getattr(config, "head_dim", None) else _head(config)
    rope = config.rope_parameters
    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type(LlamaFileType[_TYPES[dtype][1]])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _head(config: Any) -> int:
    return int(config.hidden_size // config.num_attention_heads)


def _speak(writer: Any, spoken: Spoken) -> None:
    vocabulary = spoken.vocabulary
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.split)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges([" ".join(pair) for pair in vocabulary.merges])
    writer.add_eos_token_id(spoken.turn_end)
    writer.add_eot_token_id(spoken.turn_end)
    if vocabulary.bos is not None:
        writer.add_bos_token_id(vocabulary.bos)
    if vocabulary.pad is not None:
        writer.add_pad_token_id(vocabulary.pad)
    writer.add_add_bos_token(vocabulary.adds_bos)
    writer.add_chat_template(spoken.template)


def _tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Every weight by its name in the file; a head that is the embedding is not repeated."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    config = model.config
    names = get_tensor_name_map(MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    for name, parameter in model.named_parameters():  # tied weights come once
        module, _, kind = name.rpartition(".")
        found = names.get_name(module)
        if found is None:
            raise ModelError(f"{name} has no place in a GGUF file; use --to hf and llama.cpp's converter")
        values = parameter.detach().cpu().float()
        if config.model_type == "llama" and module.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if module[-6] == "q" else config.num_key_value_heads
            values = neighbours(values, heads)
        yield f"{found}.{kind}", values
    if config.rope_parameters["rope_type"] == "llama3":
        yield "rope_freqs.weight", slowed(model)


def neighbours(rows: Tensor, heads: int) -> Tensor:
    """Rows (heads × 2 × half, …) of queries or keys, those that RoPE turns together brought together."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def slowed(model: Any) -> Tensor:
    """By which factor (head / 2,) each frequency of RoPE is slower than without scaling."""
    used: Tensor = model.model.rotary_emb.inv_freq.cpu().double()
    theta = model.config.rope_parameters["rope_theta"]
    plain = torch.pow(theta, -torch.arange(len(used), dtype=torch.float64) / len(used))
    return (plain / used).float()


def _add(writer: Any, name: str, values: Tensor, dtype: FileType) -> None:
    """Vectors stay in float32, as llama.cpp wants them; in q8_0, rows that no block fits are float16."""
    from gguf import GGMLQuantizationType, quants

    stored = _TYPES[dtype][0] if values.ndim > 1 else "F32"
    if stored == "Q8_0" and values.shape[-1] % _BLOCK:
        stored = "F16"
    kind = GGMLQuantizationType[stored]
    packed = quants.quantize(np.ascontiguousarray(values.numpy()), kind)
    writer.add_tensor(name, packed, raw_dtype=kind)


def read_back(path: Path, like: Any) -> Any:
    """The model of a GGUF file in float32, by transformers' own reader. like: the model that was written.

    Its configuration is taken from there: the file does not say everything (biases, scaled RoPE).
    """
    from transformers import AutoModelForCausalLM, GgufConfig

    try:
        with redirect_stderr(StringIO()):  # a bar that nothing else turns off
            return AutoModelForCausalLM.from_pretrained(
                str(path.parent),
                gguf_file=path.name,
                config=like.config,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.float32,
            )
    except Exception as error:  # whatever another library says of the file
        raise ModelError(f"{path} cannot be read back: {error}") from error
