"""How a process joins the others that a launcher has started, and how one that fails ends all."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import distributed

from renshu.errors import ConfigError, OtherProcessFailed, TrainingError
from renshu.train.launch import OURS
from renshu.train.processes import ALONE, Processes, Replicated, Sharded

PATIENCE = timedelta(hours=6)  # for the slowest process; one that is gone is noticed at once
_FAILURE = "renshu/failure"
_LOOK = 0.5  # seconds between two looks at it
_GRACE = 5.0  # seconds in which a process may end by itself

Kind = Literal["ddp", "fsdp"]


def launched() -> int:
    """How many processes a launcher has started together; 1 if this one is alone. Raises ConfigError."""
    size = _number("WORLD_SIZE", 1)
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if size > 1 and missing:
        raise ConfigError(
            f"WORLD_SIZE is {size}, but {missing[0]} is not set: use a launcher, or --processes"
        )
    return size


@contextmanager
def joined(kind: Kind = "ddp", device: str = "auto") -> Iterator[Processes]:
    """The processes that a launcher has started (its environment variables tell), or this one alone.

    device: of the model; on GPUs each process takes its own. What one raises ends all. Raises ConfigError.
    """
    if launched() == 1:
        yield ALONE
        return
    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"):
        if os.environ.get(name, "").lower() == "true":
            raise ConfigError(f"{name} is not used: say in the recipe how weights are kept (parallel.kind)")
    if OURS in os.environ:
        threading.Thread(target=_end_with_launcher, daemon=True).start()
    distributed.init_process_group(_backend(device), timeout=PATIENCE)
    alarm = _Alarm(distributed.get_rank(), distributed.get_world_size())
    try:
        yield (Sharded if kind == "fsdp" else Replicated)(alarm)
        alarm.off()
        distributed.barrier()
    except BaseException as error:
        if (cause := alarm(error)) is not error:
            raise cause from error
        raise
    distributed.destroy_process_group()


class _Alarm:
    """One failure ends all processes, and only the first cause is told.

    A thread ends this process a while after another one has failed, whatever it waits for then.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._judged: BaseException | None = None
        store: Any = distributed  # it does not export its stores
        self._store = store.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=PATIENCE
        )
        self._off = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def __call__(self, error: BaseException) -> BaseException:
        """The error itself where it is the first cause, else OtherProcessFailed."""
        if error is not self._judged:
            self.off()
            self._judged = self._judge(error)
        return self._judged

    def off(self) -> None:
        """This process ends by itself."""
        self._off.set()
        self._thread.join()

    def _judge(self, error: BaseException) -> BaseException:
        if isinstance(error, OtherProcessFailed):
            return error
        echo = _is_lost_connection(error)
        if (self.rank or echo) and (cause := self._told()) is not None:
            return OtherProcessFailed(cause)
        if echo and OURS in os.environ:  # the launcher knows who was killed
            return OtherProcessFailed(str(error))
        self._tell(f"process {self.rank}: {type(error).__name__}: {error}")
        if echo:
            return TrainingError(
                "the connection to another process broke: it was killed, or its machine cannot be reached"
            )
        if self.rank:
            error.add_note(f"this was process {self.rank} of {self.size}, numbered from 0")
        return error

    def _tell(self, text: str) -> None:
        with contextlib.suppress(RuntimeError):  # whoever keeps the store may be gone
            self._store.set(_FAILURE, text)

    def _told(self) -> str | None:
        """What another process says that it fails of, if it says so soon."""
        until = time.monotonic() + 2 * _LOOK
        with contextlib.suppress(RuntimeError):
            while time.monotonic() < until:
                if self._store.check([_FAILURE]):
                    return str(self._store.get(_FAILURE), "utf-8")
                time.sleep(_LOOK / 10)
        return None

    def _listen(self) -> None:
        while not self._off.wait(_LOOK):
            try:
                failed = self._store.check([_FAILURE])
            except RuntimeError:
                failed = True
            if failed:
                if not self._off.wait(_GRACE):
                    os._exit(OtherProcessFailed.exit_code)
                return


def _end_with_launcher() -> None:
    """The launcher writes nothing: its pipe ends when it does, however it was ended."""
    os.read(0, 1)
    os._exit(OtherProcessFailed.exit_code)


def _is_lost_connection(error: BaseException) -> bool:
    """gloo's errors have no type of their own."""
    text = str(error).lower()
    return isinstance(error, distributed.DistError) or (
        isinstance(error, RuntimeError) and ("gloo" in text or "connection closed by peer" in text)
    )


def _backend(device: str) -> str:
    """Raises ConfigError where there are fewer GPUs than processes of this machine."""
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if not on_gpu:
        return "gloo"
    local, gpus = _number("LOCAL_RANK", 0), torch.cuda.device_count()
    if local >= gpus:
        raise ConfigError(
            f"process {local} of this machine finds {gpus} GPUs, and each needs its own: start fewer, or set "
            "model.device=cpu"
        )
    torch.cuda.set_device(local)
    return "cpu:gloo,cuda:nccl"


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "") or str(otherwise)
    if not text.isdigit():
        raise ConfigError(f"{name} is {text!r}, not a number: use a launcher, or --processes")
    return int(text)
