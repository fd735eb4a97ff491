"""Starts the processes of a run on this machine, and sees to it that they end together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from renshu.errors import OtherProcessFailed, TrainingError

OURS = "RENSHU_LAUNCHER"  # set for processes started here: their standard input ends when this process does
HOST = "127.0.0.1"
INTERRUPTED = 130  # the exit code after Ctrl-C
_LOOK = 0.1  # seconds between two looks at the processes
_GRACE = {True: 2.0, False: 10.0}  # seconds for the others to end by themselves, if one was killed or not


def launch(command: Sequence[str], processes: int) -> int:
    """Run `command` in so many processes that find each other; the first one's output is shown.

    Returns 0, or the exit code of the process that failed, which has told why. The first Ctrl-C is passed on
    to the process that leads, a second ends all. Raises TrainingError if one was killed.
    """
    store = _store()  # kept here, so that it outlives every process
    children = [_start(command, rank, processes, store.port) for rank in range(processes)]
    asked = 0
    ends: float | None = None
    try:
        while True:
            try:
                codes = [child.poll() for child in children]
                failed = [code for code in codes if code]
                if failed and ends is None:
                    ends = time.monotonic() + _GRACE[min(failed) < 0]
                if None not in codes or (ends is not None and time.monotonic() > ends):
                    break
                time.sleep(_LOOK)
            except KeyboardInterrupt:
                asked += 1
                if asked > 1:
                    return INTERRUPTED
                children[0].send_signal(signal.SIGINT)
    finally:
        for child in children:
            child.kill()
            child.wait()
    return INTERRUPTED if -signal.SIGINT in codes else _outcome(codes)


def _outcome(codes: Sequence[int | None]) -> int:
    """What the exit codes of all processes, None of those that had to be ended, say together."""
    spoken = [
        code for code in codes if code is not None and code > 0 and code != OtherProcessFailed.exit_code
    ]
    if spoken:
        return spoken[0]
    for rank, code in enumerate(codes):
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = "; perhaps memory ran out" if name == "SIGKILL" else ""
            raise TrainingError(
                f"process {rank} of {len(codes)} was ended from outside ({name}{hint}), and so are the others"
            )
    if any(codes):
        raise TrainingError(f"the {len(codes)} processes lost the connection to each other")
    return 0


def _start(command: Sequence[str], rank: int, size: int, port: int) -> subprocess.Popen[bytes]:
    threads = max(1, (os.cpu_count() or 1) // size)
    environment = {
        "OMP_NUM_THREADS": str(threads),
        **_loopback(),
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # torch's word for a store that a launcher keeps
        OURS: "1",
    }
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=None if rank == 0 else subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C comes here alone
    )


def _store() -> Any:
    """Where the processes find each other: a server on this machine that no other one reaches."""
    from torch import distributed

    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    stores: Any = distributed  # its stores are not exported
    return stores.TCPStore(
        HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _loopback() -> dict[str, str]:
    """Keeps what the processes tell each other on this machine."""
    names = [name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []
    own = next((name for name in ("lo", "lo0") if name in names), None)
    return {} if own is None else {"GLOO_SOCKET_IFNAME": own, "NCCL_SOCKET_IFNAME": own}


def renshu(*arguments: str) -> list[str]:
    """The command for a verb of this installation."""
    return [sys.executable, "-c", "from renshu.cli import main; main()", *arguments]
