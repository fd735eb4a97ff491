"""What a recipe may say about its model."""

from __future__ import annotations

from typing import Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from renshu.config import StrictModel

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
AdapterKind = Literal["lora", "rslora", "dora", "qlora"]


class AdapterSettings(StrictModel):
    """A low-rank adapter. There is no dropout: sampler and trainer must agree in RL.

    kind: `lora` adds B·A · alpha / rank to a frozen weight (Hu et al. 2021, arXiv 2106.09685); `rslora`
        divides by √rank instead (Kalajdzievski 2023, arXiv 2312.03732); `dora` trains the length of the
        weight's rows beside their direction (Liu et al. 2024, arXiv 2402.09353); `qlora` is lora on weights
        in four bits: NF4, doubly quantised (Dettmers et al. 2023, arXiv 2305.14314).
    targets: names of the linear layers that get an adapter; `all-linear` is every one but the head.
    """

    kind: AdapterKind = "lora"
    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"


class ModelSettings(StrictModel):
    """Which model, and how it is loaded.

    name: `embedded`, a name of `renshu models list`, a folder, or a name on the Hugging Face hub.
    adapter: `none` trains all weights; a kind of adapter, or its settings, trains that.
    dtype: of the weights. `auto` is float32 on a CPU, without an adapter or with autocast, else bfloat16.
    autocast: mixed precision: weights stay in float32, products are computed in bfloat16, by the sampler and
        the trainer alike; `auto` is bfloat16 on a GPU that has it.
    checkpointing: keep only what goes into each layer, and compute the rest again for the gradient.
    device: `auto` is the first CUDA GPU if there is one, else the CPU; or a name: `cuda:1`, `mps`.
    template: `own` is the checkpoint's chat template (tools go into the system prompt where it ignores them);
        `fallback` is Renshu's, also for checkpoints without one; anything else is the path of a Jinja file.
    thoughts: what becomes of earlier thoughts when a template drops them (see `renshu.chat`).
    trust_remote_code: run Python that comes with the checkpoint. Refused unless set.
    """

    name: str = "embedded"
    adapter: AdapterSettings | None = None
    dtype: Dtype = "auto"
    autocast: Literal["none", "auto", "bfloat16"] = "none"
    checkpointing: bool = False
    device: str = "auto"
    template: str = "own"
    thoughts: Literal["append", "fork", "strip"] = "append"
    trust_remote_code: bool = False

    @field_validator("name")
    @classmethod
    def _with_weights(cls, value: str) -> str:
        if value.startswith("api:"):
            raise ValueError(
                "a model behind an endpoint (api:) gives no weights and no token ids, so it cannot be "
                "trained: it is for `renshu eval` and `renshu compare`"
            )
        return value

    @field_validator(
        "adapter",
        mode="before",
        json_schema_input_type=Literal["none", "lora", "rslora", "dora", "qlora"] | AdapterSettings | None,
    )
    @classmethod
    def _adapter_by_name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in ("none", *get_args(AdapterKind)):
            kinds = ", ".join(f"`{kind}`" for kind in get_args(AdapterKind))
            raise ValueError(f"expected `none`, {kinds} or the settings of an adapter, not {value!r}")
        return None if value == "none" else {"kind": value}

    @model_validator(mode="after")
    def _masters_in_float32(self) -> Self:
        if self.autocast != "none" and self.dtype not in ("auto", "float32"):
            raise ValueError(f"autocast keeps the weights in float32: set dtype to float32, not {self.dtype}")
        return self
