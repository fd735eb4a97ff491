"""What a recipe may say about its model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from renshu.config import StrictModel

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class AdapterSettings(StrictModel):
    """LoRA (Hu et al. 2021, arXiv 2106.09685). There is no dropout: sampler and trainer must agree in RL.

    targets: names of the linear layers that get an adapter; `all-linear` is every one but the head.
    """

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"


class ModelSettings(StrictModel):
    """Which model, and how it is loaded.

    name: `embedded`, a name of `renshu models list`, a folder, or a name on the Hugging Face hub.
    adapter: `none` trains all weights; `lora` or its settings trains an adapter.
    dtype: `auto` is float32 on a CPU or without an adapter, else bfloat16.
    device: `auto` is the first CUDA GPU if there is one, else the CPU; or a name: `cuda:1`, `mps`.
    template: `own` is the checkpoint's chat template (tools go into the system prompt where it ignores them);
        `fallback` is Renshu's, also for checkpoints without one; anything else is the path of a Jinja file.
    thoughts: what becomes of earlier thoughts when a template drops them (see `renshu.chat`).
    trust_remote_code: run Python that comes with the checkpoint. Refused unless set.
    """

    name: str = "embedded"
    adapter: AdapterSettings | None = None
    dtype: Dtype = "auto"
    device: str = "auto"
    template: str = "own"
    thoughts: Literal["append", "fork", "strip"] = "append"
    trust_remote_code: bool = False

    @field_validator(
        "adapter", mode="before", json_schema_input_type=Literal["none", "lora"] | AdapterSettings | None
    )
    @classmethod
    def _adapter_by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in ("none", "lora"):
                raise ValueError(f"expected `none`, `lora` or the settings of an adapter, not {value!r}")
            return {} if value == "lora" else None
        return value
