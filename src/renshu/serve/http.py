"""What all of Renshu's servers have in common: who is let in, how bodies are read, how refusals look."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from renshu.serve.refusals import Refusal

BODY = 8 << 20  # bytes
HOST = re.compile(r"(?:\[(.*)\]|([^:]*))(?::\d*)?")
PATIENCE = 30.0  # seconds until a body must have arrived


class JsonResponse(Response):
    """JSON in ASCII: half a surrogate pair that a client sent cannot break it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens at `host`."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_local(request: Request) -> None:
    """Raises Refusal for a request under a foreign name of this machine, as a page in a browser makes it."""
    host = request.headers.get("host", "")
    named = HOST.fullmatch(host)
    if not (named and is_loopback(named[1] or named[2] or "")):
        raise Refusal(403, f"this server is for this machine only, not for the host {host[:80]!r}")


def require_key(request: Request, key: str) -> None:
    """Raises Refusal for a request without the key as its bearer token."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), key.encode()):
        raise Refusal(401, "send this server's key as a bearer token", code="invalid_api_key")


async def body_of(request: Request) -> bytes:
    """Raises Refusal: 408 for a body that does not come, 413 for one too large, 415 for another kind."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, f"send the request as application/json, not {kind[:80] or 'without a type'}")
    read = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                read += part
                if len(read) > BODY:
                    raise Refusal(413, f"the body is larger than {BODY >> 20} MiB")
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {PATIENCE:.0f} seconds") from None
    return bytes(read)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    headers = {"Connection": "close"} if error.status in (408, 413) else None
    return JsonResponse(error.body, error.status, headers)


async def _refused_by_starlette(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.scope['path'][:200]}: {error.detail}"
    return JsonResponse(Refusal(error.status_code, text).body, error.status_code, error.headers)


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _broken(request: Request, error: Exception) -> Response:
    return JsonResponse(Refusal(500, f"this server failed: {type(error).__name__}").body, 500)


HANDLERS: dict[Any, Any] = {
    Refusal: _refused,
    HTTPException: _refused_by_starlette,
    ClientDisconnect: _left,
    Exception: _broken,
}
