"""Server-sent events that end when the client hangs up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PATIENCE = 30.0  # seconds in which a client must take something, or it counts as gone


class EventStream(Response):
    """Sends each object as an event, then `[DONE]`. cancel: called if the client leaves before the end."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[dict[str, Any]], cancel: Callable[[], object]) -> None:
        self.status_code, self.background = 200, None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._events, self._cancel = events, cancel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_hung_up(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except OSError:  # the connection broke
            pass
        finally:
            self._cancel()  # of no effect on an answer that is complete
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self._events:
            await self._part(send, json.dumps(event, allow_nan=False))
        await self._part(send, "[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _part(self, send: Send, text: str) -> None:
        async with asyncio.timeout(PATIENCE):  # a TimeoutError is an OSError
            await send(
                {"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True}
            )


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
