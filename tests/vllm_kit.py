"""A server that speaks as vLLM does, backed by a model of ours, so that tokens and log-probs can be compared.

It is strict where vLLM is: unknown adapters, contexts, keys of a request, the order of a weight update.
"""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from api_kit import Listener, listening
from engine_models import tiny
from renshu.engines import Sampling
from renshu.engines.native import NativeEngine
from renshu.engines.settings import EngineSettings
from renshu.engines.vllm import VllmEngine
from renshu.models.adapters import add_adapter, load_adapter
from renshu.models.settings import AdapterSettings

KEYS = {
    *(
        "model",
        "prompt",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "seed",
    ),
    *("presence_penalty", "frequency_penalty", "stop_token_ids", "ignore_eos", "n", "logprobs"),
    *("return_token_ids", "return_tokens_as_token_ids", "skip_special_tokens", "add_special_tokens"),
}


class Wire:
    """A transport that hands tensors over in this process, where NCCL would broadcast them."""

    def __init__(self, *, packed_at: str = "opening") -> None:
        self.opening: Mapping[str, Any] = {"packed": True} if packed_at == "opening" else {}
        self.sending: Mapping[str, Any] = {"packed": True} if packed_at == "sending" else {}
        self.met = threading.Barrier(2, timeout=10)
        self.tensors: queue.Queue[tuple[str, Tensor]] = queue.Queue()

    def join(self, meeting: Mapping[str, Any]) -> None:
        self.met.wait()

    def send(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        for name, tensor in tensors:
            self.tensors.put((name, tensor.clone()))


class FakeVllm:
    """What the server knows. mode: of --logprobs-mode. details: --enable-prompt-tokens-details."""

    def __init__(
        self,
        model: Any,
        *,
        context: int = 512,
        mode: str = "processed",
        details: bool = False,
        wire: Wire | None = None,
    ) -> None:
        self.model = copy.deepcopy(model)
        self.context, self.mode, self.details, self.wire = context, mode, details, wire
        self.adapters: dict[str, Any] = {}
        self.prefixes: set[tuple[int, ...]] = set()
        self.log: list[tuple[str, Any]] = []
        self.received: dict[str, Tensor] = {}
        self.updating = False
        self.lock = threading.Lock()

    def __call__(self, path: str, body: dict[str, Any]) -> Any:
        self.log.append((path, body))
        with self.lock:
            return getattr(self, "do" + path.replace("/", "_"))(body)

    def do_v1_models(self, body: Any) -> Any:
        base = {"id": "base", "root": "base", "parent": None, "max_model_len": self.context}
        return {"data": [{"id": name, "parent": "base"} for name in self.adapters] + [base]}

    def do_v1_completions(self, body: Any) -> Any:
        assert set(body) == KEYS, set(body) ^ KEYS
        if body["model"] != "base" and body["model"] not in self.adapters:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        prompt = body["prompt"]
        if len(prompt) + body["max_tokens"] > self.context:
            return 400, {"error": {"message": "maximum context length", "param": "input_tokens"}}
        assert not self.updating
        model = self.adapters.get(body["model"], self.model)
        ids, finish = self._sample(model, body)
        logprobs, tops = self._logprobs(model, body, ids)
        cached = max((len(p) for p in self.prefixes if list(p) == prompt[: len(p)]), default=0)
        self.prefixes.add((*prompt, *ids[:-1]))
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        usage |= {"prompt_tokens_details": {"cached_tokens": cached}} if self.details else {}
        told = {"tokens": [f"token_id:{i}" for i in ids], "token_logprobs": logprobs, "top_logprobs": tops}
        choice = {"index": 0, "text": "", "token_ids": ids, "prompt_token_ids": prompt}
        return {"choices": [{**choice, "finish_reason": finish, "logprobs": told}], "usage": usage}

    def _sample(self, model: Any, body: dict[str, Any]) -> tuple[list[int], str]:
        engine = NativeEngine(model, context=self.context)
        session = engine.open(body["prompt"], seed=body["seed"])
        names = ("max_tokens", "temperature", "top_p", "top_k", "min_p")
        sampling = Sampling(
            **{name: body[name] for name in names}, stop_ids=frozenset(body["stop_token_ids"])
        )
        (generated,) = engine.run([session.generate(sampling)])
        return list(generated.segment.ids), generated.finish

    @torch.no_grad()
    def _logprobs(self, model: Any, body: dict[str, Any], ids: list[int]) -> tuple[list[float], list[Any]]:
        sequence = torch.tensor([[*body["prompt"], *ids]])
        logits = model(input_ids=sequence, attention_mask=torch.ones_like(sequence), use_cache=False).logits[
            0, len(body["prompt"]) - 1 : -1
        ]
        logprobs = torch.log_softmax(
            logits / (body["temperature"] or 1.0) if self.mode == "processed" else logits, -1
        )
        chosen = [logprobs[n, token].item() for n, token in enumerate(ids)]
        tops = []
        for n, token in enumerate(ids):
            best = [token, *logprobs[n].topk(body["logprobs"]).indices.tolist()]
            tops.append({f"token_id:{i}": logprobs[n, i].item() for i in best})
        return chosen, tops

    def do_v1_load_lora_adapter(self, body: Any) -> Any:
        name = body["lora_name"]
        if name in self.adapters:
            return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}
        if not Path(body["lora_path"]).is_dir():
            return 404, {"error": {"message": f"no such folder: {body['lora_path']}"}}
        self.adapters[name] = load_adapter(copy.deepcopy(self.model), body["lora_path"]).eval()
        return f"Success: LoRA adapter '{name}' added successfully."

    def do_v1_unload_lora_adapter(self, body: Any) -> Any:
        del self.adapters[body["lora_name"]]
        return "Success"

    def do_server_info(self, body: Any) -> Any:
        assert body == {"config_format": "json"}
        transfer = None if self.wire is None else {"backend": "nccl"}
        return {"vllm_config": {"weight_transfer_config": transfer}}

    def do_get_world_size(self, body: Any) -> Any:
        return {"world_size": 2}

    def do_init_weight_transfer_engine(self, body: Any) -> Any:
        assert self.wire is not None
        self.wire.met.wait()  # as the rendezvous: it returns when the trainer has come
        return {"message": "Weight transfer initialized"}

    def do_start_weight_update(self, body: Any) -> Any:
        self.updating = True
        return {"message": "Weight update started"}

    def do_update_weights(self, body: Any) -> Any:
        assert self.updating
        assert self.wire is not None
        announced = body["update_info"]
        parameters = dict(self.model.named_parameters())
        for name, dtype, shape in zip(
            announced["names"], announced["dtype_names"], announced["shapes"], strict=True
        ):
            came, tensor = self.wire.tensors.get(timeout=10)
            assert (came, str(tensor.dtype), list(tensor.shape)) == (name, f"torch.{dtype}", shape)
            self.received[name] = tensor
            with torch.no_grad():
                parameters[name].copy_(tensor)
        return {"message": "Weights updated"}

    def do_finish_weight_update(self, body: Any) -> Any:
        self.updating = False
        return {"message": "Weight update finished"}

    def do_reset_prefix_cache(self, body: Any) -> Any:
        self.prefixes.clear()
        return ""

    def paths(self) -> list[str]:
        """What was asked, in order, without turns."""
        return [path for path, _ in self.log if path != "/v1/completions"]


@contextmanager
def serving(fake: FakeVllm) -> Iterator[Listener]:
    with listening(fake) as server:
        yield server


PROMPT = [5, 6, 7, 8, 9]


def adapted(**settings):
    """A model with an adapter that changes what it says."""
    torch.manual_seed(1)
    model = add_adapter(tiny(), AdapterSettings(rank=2, **settings)).eval()
    scramble(model)
    return model


def scramble(model, scale=0.3):
    """New weights for whatever is trained."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * scale)


def connect(server, model, wire=None, **settings):
    options = {"kind": "vllm", "url": server.url, "seconds": 10, **settings}
    return VllmEngine(model, EngineSettings(**options), transport=wire)


def fake(**options):
    return FakeVllm(tiny(), **options)


def turns(engine, sampling, seeds=(1, 2, 3)):
    """Two turns of each of a group that shares its prompt, with a tool's answer between."""

    async def episode(session):
        first = await session.generate(sampling)
        session.extend([11, 12])
        return first, await session.generate(sampling)

    group = engine.open(PROMPT, seed=0).fork(seeds)
    return engine.run([episode(session) for session in group])
