"""Bringing a server of vLLM in step with the model that is trained: by its adapter, or by all weights."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import torch
from torch import Tensor

from renshu.engines.openai_client import Endpoint, Refused, is_loopback
from renshu.errors import ConfigError, EngineError, InfrastructureError

LORA = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL --enable-lora --max-lora-rank {rank}"
SERVE = """VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config '{"backend": "nccl"}'"""


class Sync(Protocol):
    """A way to send weights."""

    async def push(self, endpoint: Endpoint, served: str) -> str:
        """Send the weights as they are now; the name to ask for from then on. served: the name until now."""
        ...


class AdapterSync:
    """The adapter is saved to a folder that the server reads, loaded under a new name, the old one unloaded.

    A new name: the server's prefix cache knows adapters by name. folder: where; a temporary one if None.
    Raises ConfigError for adapters that vLLM does not serve.
    """

    def __init__(self, model: Any, folder: str | None) -> None:
        config = next(iter(model.peft_config.values()))
        for name, bad in (
            ("DoRA", getattr(config, "use_dora", False)),
            ("biases", getattr(config, "bias", "none") != "none"),
            ("layers trained as a whole", getattr(config, "modules_to_save", None)),
        ):
            if bad:
                raise ConfigError(f"vLLM serves no adapters with {name}: sample with another engine")
        self._model, self._rank = model, config.r
        self._temporary = tempfile.TemporaryDirectory(prefix="renshu-")  # removed with this object
        self._root = Path(folder or self._temporary.name).absolute()
        self._prefix, self._number = f"renshu-{secrets.token_hex(4)}", 0

    async def push(self, endpoint: Endpoint, served: str) -> str:
        old, self._number = self._name, self._number + 1
        folder = self._root / self._name
        self._model.save_pretrained(str(folder), save_embedding_layers=False)
        try:
            await endpoint.tell("/v1/load_lora_adapter", {"lora_name": self._name, "lora_path": str(folder)})
        except (Refused, ConfigError) as error:
            raise EngineError(
                f"{endpoint.url} does not load the adapter in {folder}: {error}. The server must be able to "
                f"read that folder (engine.folder), and be started as {LORA.format(rank=self._rank)}"
            ) from None
        if self._number > 1:
            await self._forget(endpoint, old)
        return self._name

    @property
    def _name(self) -> str:
        return f"{self._prefix}-{self._number}"

    async def _forget(self, endpoint: Endpoint, name: str) -> None:
        """Unload an adapter that nobody asks for any more."""
        with contextlib.suppress(Refused, ConfigError):  # it is gone already
            await endpoint.tell("/v1/unload_lora_adapter", {"lora_name": name})
        shutil.rmtree(self._root / name, ignore_errors=True)


class Transport(Protocol):
    """What carries tensors to the server's workers while it waits for them.

    opening, sending: what the server is told beside the rest, when the group is formed and at every update.
    """

    opening: Mapping[str, Any]
    sending: Mapping[str, Any]

    def join(self, meeting: Mapping[str, Any]) -> None:
        """Form a group with the workers; returns when all are there."""
        ...

    def send(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        """Send named tensors, in the order in which they were announced."""
        ...


class WeightSync:
    """All weights, by vLLM's weight transfer, as TRL 1.16's `VLLMClient` sends them: the server is told what
    comes (`/update_weights`) and receives it from the transport meanwhile; then it forgets its prefix cache.
    """

    def __init__(self, model: Any, transport: Transport | None) -> None:
        self._model, self._transport, self._joined = model, transport, False

    async def push(self, endpoint: Endpoint, served: str) -> str:
        try:
            if not self._joined:
                await self._join(endpoint)
            await self._send(endpoint)
        except (Refused, ConfigError, InfrastructureError) as error:
            raise EngineError(f"{endpoint.url} does not take the weights: {error}") from None
        return served

    async def _join(self, endpoint: Endpoint) -> None:
        try:
            info = await endpoint.get("/server_info?config_format=json", _object)
            size = await endpoint.get("/get_world_size", lambda body: int(_object(body)["world_size"]))
        except ConfigError as error:
            raise EngineError(f"{error}. Start the server as {SERVE}") from None
        if (info.get("vllm_config") or {}).get("weight_transfer_config") is None:
            raise EngineError(f"{endpoint.url} has no weight transfer: start it as {SERVE}")
        if self._transport is None:
            self._transport = Nccl(next(self._model.parameters()).device)
        meeting = {
            "master_address": _own_address(endpoint.url),
            "master_port": _free_port(),
            "rank_offset": 1,  # this process is rank 0
            "world_size": size + 1,
            **self._transport.opening,
        }
        transport = self._transport
        await _meanwhile(
            endpoint.tell("/init_weight_transfer_engine", {"init_info": meeting}, once=True),
            lambda: transport.join(meeting),
        )
        self._joined = True

    async def _send(self, endpoint: Endpoint) -> None:
        transport = self._transport
        assert transport is not None
        weights = [(name, parameter.detach()) for name, parameter in self._model.named_parameters()]
        announced = {
            "names": [name for name, _ in weights],
            "dtype_names": [str(weight.dtype).removeprefix("torch.") for _, weight in weights],
            "shapes": [list(weight.shape) for _, weight in weights],
            **transport.sending,
        }
        await endpoint.tell("/start_weight_update", {}, once=True)
        await _meanwhile(
            endpoint.tell("/update_weights", {"update_info": announced}, once=True),
            lambda: transport.send((name, weight.contiguous()) for name, weight in weights),
        )
        await endpoint.tell("/finish_weight_update", {}, once=True)
        await endpoint.tell("/reset_prefix_cache", {})


class Nccl:
    """vLLM's own NCCL transfer; needs the package `vllm` and a CUDA device here, too."""

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise ConfigError(
                f"engine.sync: weights goes from GPU to GPU, and the model is on {device}: "
                "train on a GPU, or take an adapter (model.adapter=lora)"
            )
        try:
            from vllm.distributed.weight_transfer import nccl_engine
        except ImportError:
            raise ConfigError(
                "engine.sync: weights needs vLLM here, too: pip install 'renshu[vllm]'"
            ) from None
        self._device, self._engine = device, nccl_engine
        try:  # vLLM 0.28 moved the trainer's side out of the engine
            from vllm.distributed.weight_transfer import nccl_common, packed_tensor

            self._common, self._packed = nccl_common, packed_tensor
        except ImportError:
            self._common = self._packed = None
        if self._common is not None and not hasattr(self._common, "trainer_init"):
            self._common = None
        self._group: Any = None
        packed = {"packed": True}
        self.opening: Mapping[str, Any] = packed if self._common is not None else {}
        self.sending: Mapping[str, Any] = {} if self._common is not None else packed

    def join(self, meeting: Mapping[str, Any]) -> None:
        torch.cuda.set_device(self._device)
        if self._common is not None:
            self._group = self._common.trainer_init(dict(meeting))
        else:
            self._group = self._engine.NCCLWeightTransferEngine.trainer_init(dict(meeting))

    def send(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        torch.cuda.set_device(self._device)
        if self._common is not None:
            self._packed.packed_nccl_broadcast_producer(
                iterator=tensors, group=self._group, src=0, post_iter_func=lambda item: item[1]
            )
        else:
            arguments = self._engine.NCCLTrainerSendWeightsArgs(group=self._group, packed=True)
            self._engine.NCCLWeightTransferEngine.trainer_send_weights(
                iterator=tensors, trainer_args=arguments
            )


async def _meanwhile(request: Any, work: Any) -> None:
    """Await a request while a thread does what the server waits for.

    The thread is a daemon: where the request fails, nobody waits for a peer that will never come.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def report(error: BaseException | None) -> None:
        if not done.done():
            done.set_exception(error) if error is not None else done.set_result(None)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except Exception as raised:
            error = EngineError(f"sending weights failed: {type(raised).__name__}: {raised}")
        with contextlib.suppress(RuntimeError):  # the loop is over: nobody waits any more
            loop.call_soon_threadsafe(report, error)

    asking = asyncio.ensure_future(request)
    threading.Thread(target=run, daemon=True).start()
    try:
        await asyncio.wait({asking, done}, return_when=asyncio.FIRST_EXCEPTION)
        for part in (asking, done):
            if part.done():
                part.result()
        await asyncio.gather(asking, done)
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        done.cancel()


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise ValueError("expected an object")
    return body


def _own_address(url: str) -> str:
    """The address of this machine on the way to the server."""
    if is_loopback(url):
        return "127.0.0.1"
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect((parts.hostname or "", parts.port or 80))
        return str(probe.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
