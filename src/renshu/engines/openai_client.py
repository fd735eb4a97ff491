"""JSON over HTTP to one endpoint: so many requests at once, retries that come to an end, a key that no text
ever shows.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from renshu.errors import ConfigError, EngineError, InfrastructureError

T = TypeVar("T")
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
HOPELESS = frozenset(
    {401, 402, 403, 404, 405}
)  # the key, the account or the address: the same for every request
QUOTA = "insufficient_quota"  # OpenAI answers 429 to this, but waiting does not pay the bill
GIVE_UPS = 5  # in a row, or as many as are under way together: a sign that it is the server, not a request
LONGEST_PAUSE = 60.0  # seconds between two tries, unless the server asks for more


class Refused(Exception):
    """The endpoint answers that it will not do this. `param`: the key of the request that it names, or "".

    Never leaves this folder: whoever asked knows what it means for an episode.
    """

    def __init__(self, status: int, code: str, param: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code, self.param, self.text = status, code, param, text


@dataclass(frozen=True)
class Patience:
    """at_once: requests that are under way together. seconds: for one request with all its retries.

    connecting: seconds for which nobody need listen at the address (a server that restarts). pause: of the
    first retry; it doubles with each, and a random half is added.
    """

    at_once: int = 8
    seconds: float = 300.0
    connecting: float = 30.0
    pause: float = 0.5


class Endpoint:
    """One base URL. To be used inside `async with endpoint.open()`.

    A request that is refused for the sake of the key or the address raises ConfigError, any other refusal
    `Refused`; one that cannot be had in time InfrastructureError. After GIVE_UPS of the latter in a row
    nobody waits any longer: EngineError.
    """

    def __init__(self, url: str, *, key: str | None = None, patience: Patience = Patience()) -> None:
        self.url = checked_url(url, secret=key is not None)
        self.patience = patience
        self._key = key
        self._client: Any = None
        self._slots = asyncio.Semaphore(patience.at_once)
        self._given_up = 0
        self._random = random.Random(0)  # pauses need no secrets, only to differ

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Connections, closed at the end. Raises ConfigError if there is no HTTP client."""
        client = http_client()
        self._slots, self._given_up = asyncio.Semaphore(self.patience.at_once), 0  # of the loop that runs now
        headers = {"Authorization": f"Bearer {self._key}"} if self._key is not None else {}
        async with client.AsyncClient(
            headers=headers,
            timeout=client.Timeout(self.patience.seconds, connect=10.0),
            limits=client.Limits(max_connections=self.patience.at_once),
            trust_env=not is_loopback(self.url),  # proxies, but none between this machine and itself
        ) as self._client:
            try:
                yield
            finally:
                self._client = None

    @property
    def is_open(self) -> bool:
        return self._client is not None

    async def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """What `read` makes of the answer. Where it raises ValueError, which says that it is none, the
        endpoint is asked again.
        """
        return await self._patiently("POST", path, body, read)

    async def get(self, path: str, read: Callable[[Any], T]) -> T:
        """The same, without a body."""
        return await self._patiently("GET", path, None, read)

    async def tell(self, path: str, body: Mapping[str, Any], *, once: bool = False) -> None:
        """Post something whose answer says nothing but that it was done. once: it must not be tried again."""
        await self._patiently("POST", path, body, None, once=once)

    async def _patiently(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        read: Callable[[Any], T] | None,
        *,
        once: bool = False,
    ) -> T:
        async with self._slots:
            began, tries = time.monotonic(), 0
            while True:
                self._require_alive()
                tries += 1
                left = began + self.patience.seconds - time.monotonic()
                try:
                    found: T = await asyncio.wait_for(self._once(method, path, body, read), max(left, 0.01))
                except TimeoutError:
                    problem = _Problem("no answer in time")
                except _Problem as error:
                    problem = error
                else:
                    self._given_up = 0
                    return found
                allowed = self.patience.connecting if problem.unreachable else self.patience.seconds
                pause = problem.wait
                if pause is None:
                    pause = min(self.patience.pause * 2 ** (tries - 1), LONGEST_PAUSE)
                    pause *= 1 + self._random.random() / 2
                if once or time.monotonic() + pause - began > allowed:
                    self._given_up += 1
                    waited = f"{tries} tries in {time.monotonic() - began:.0f} seconds"
                    raise InfrastructureError(f"{self.url}: {problem}; given up after {waited}")
                await asyncio.sleep(pause)

    def _require_alive(self) -> None:
        if not self.is_open:
            raise EngineError("an endpoint is asked in an episode only: pass the coroutine to run([...])")
        if self._given_up >= max(GIVE_UPS, self.patience.at_once):
            raise EngineError(
                f"{self.url} does not answer: {self._given_up} requests in a row were given up. Look after "
                "the server, then start again: what was finished is kept"
            )

    async def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, read: Callable[[Any], T] | None
    ) -> Any:
        client = http_client()
        try:
            response = await self._client.request(
                method,
                self.url + path,
                content=None if body is None else json.dumps(body).encode(),  # escaped: half a surrogate, too
                headers={} if body is None else {"Content-Type": "application/json"},
            )
        except (client.ConnectError, client.ConnectTimeout) as error:
            raise _Problem(f"nobody listens there ({self._clean(str(error))})", unreachable=True) from None
        except client.TimeoutException:
            raise _Problem("no answer in time") from None
        except client.HTTPError as error:
            raise _Problem(f"{type(error).__name__}: {self._clean(str(error))}") from None
        status = response.status_code
        if status != 200:
            raise self._refusal(status, response)
        if read is None:
            return None
        try:
            return read(json.loads(response.content))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise _Problem(f"an answer that cannot be read: {self._clean(str(error))}") from None

    def _refusal(self, status: int, response: Any) -> Exception:
        if response.has_redirect_location:  # not followed: the key is for this host alone
            there = self._clean(response.headers["location"])
            return ConfigError(f"{self.url} sends requests on ({status}) to {there}: give the address itself")
        code, param, text = _told(response.content)
        text = self._clean(text) or "no reason given"
        if status in HOPELESS or code == QUOTA:
            return ConfigError(f"{self.url} answers {status}: {text}. {_advice(status, code)}")
        if status in RETRIED:
            return _Problem(f"it answers {status}: {text}", wait=asked_to_wait(response.headers))
        return Refused(status, code, param, text)

    def _clean(self, text: str) -> str:
        """Short, on one line, and without the key, which servers like to quote."""
        text = " ".join(text.split())
        return (text.replace(self._key, "***") if self._key else text)[:300]


class _Problem(Exception):
    """Worth another try. wait: seconds that the server asks for. unreachable: there is no server."""

    def __init__(self, text: str, *, wait: float | None = None, unreachable: bool = False) -> None:
        super().__init__(text)
        self.wait, self.unreachable = wait, unreachable


def http_client() -> Any:
    """The package `httpx2`. Raises ConfigError if it is not installed."""
    try:
        import httpx2
    except ImportError:
        raise ConfigError("asking an endpoint needs an HTTP client: pip install 'renshu[api]'") from None
    return httpx2


def checked_url(url: str, *, secret: bool = False) -> str:
    """A base URL without its last slash. secret: a key is sent there. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no address: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("an address must hold no name or password: keys are read from the environment")
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{url!r} is no address of an endpoint: expected http(s)://host/v1")
    if parts.query or parts.fragment:
        raise ConfigError("an address must have nothing behind ? or #: keys are read from the environment")
    if secret and parts.scheme == "http" and not is_loopback(url):
        raise ConfigError(f"{url}: a key is not sent over plain http: use https")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether it is this machine that is addressed."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def key_from(variable: str | None) -> str | None:
    """The key in an environment variable, None for no variable. Raises ConfigError that does not quote it."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(f"there is no key in the environment variable {variable}: set it and start again")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"the environment variable {variable} holds no key: it has spaces or odd characters"
        )
    return key


def asked_to_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds by `Retry-After-Ms` or `Retry-After` (a number or a date, RFC 9110 10.2.3); None without."""
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return max(float(milliseconds) / 1000, 0.0)
    except ValueError:
        pass
    told = headers.get("retry-after")
    if told is None:
        return None
    try:
        return max(float(told), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(told).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError):
        return None


def _told(content: bytes) -> tuple[str, str, str]:
    """Code, parameter and text of an error, by what endpoints send in practice."""
    text = content[:2000].decode("utf-8", "replace")
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        return "", "", text
    error = told.get("error", told) if isinstance(told, dict) else told
    if not isinstance(error, dict):
        return "", "", str(error)
    code = error.get("code") or error.get("type") or ""
    message = error.get("message") or error.get("detail") or text
    return str(code), str(error.get("param") or ""), str(message)


def _advice(status: int, code: str) -> str:
    if code == QUOTA or status == 402:
        return "The account has no credit left"
    if status in (401, 403):
        return "Check the key, and which environment variable holds it (--api-key-env)"
    return "Check the base URL (it usually ends in /v1) and the name of the model"
