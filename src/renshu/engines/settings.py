"""What a recipe may say about the engine that samples."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from renshu.config import StrictModel


class EngineSettings(StrictModel):
    """Which engine samples episodes, and where.

    kind: `auto` is the native engine where the model takes token trees, else the reference; `vllm` is a
    server of vLLM. The other settings are its own: url: of the server. sync: how new weights get there;
    `auto` is the adapter of a model that has one, else all weights. folder: for adapters, read by the server;
    default: a temporary one. at_once: requests together. seconds: for one turn with its retries.
    api_key_env: name of the environment variable with the server's key.
    """

    kind: Literal["auto", "native", "reference", "vllm"] = "auto"
    url: str = "http://127.0.0.1:8000"
    sync: Literal["auto", "adapter", "weights"] = "auto"
    folder: str | None = None
    at_once: int = Field(256, ge=1)
    seconds: float = Field(600.0, gt=0)
    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")

    @model_validator(mode="after")
    def _of_a_server(self) -> Self:
        own = EngineSettings.model_fields.keys() - {"kind"}
        set_here = sorted(self.model_fields_set & own)
        changed = [
            name for name in set_here if getattr(self, name) != EngineSettings.model_fields[name].default
        ]
        if self.kind != "vllm" and changed:
            raise ValueError(f"{', '.join(changed)}: only an engine of kind vllm has a server")
        return self
