"""Ctrl-C ends a run where nothing is lost: the first asks, the second does not wait."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self


class Interrupt:
    """While open, the first Ctrl-C only sets `asked`, and the run ends at its next `check`.

    A second one ends it at once. told: called at the first. agreed: whether any of several processes was
    asked, so that all end at the same point. Threads other than the main one, and programs with a handler of
    their own, keep theirs.
    """

    def __init__(self, told: Callable[[], None], agreed: Callable[[bool], bool] = bool) -> None:
        self._told, self._agreed = told, agreed
        self._asked = False
        self._ours = False

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._ask)
            self._ours = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._ours = False

    @property
    def asked(self) -> bool:
        return self._agreed(self._asked)

    def check(self) -> None:
        """Raises KeyboardInterrupt if the end was asked for."""
        if self.asked:
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        with contextlib.suppress(RuntimeError):  # the signal came while something else was being printed
            self._told()
