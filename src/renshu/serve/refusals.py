"""What a client is told when its request cannot be answered: OpenAI's form, with a status of HTTP."""

from __future__ import annotations

from typing import Any

KINDS = {401: "authentication_error", 404: "not_found_error", 500: "server_error", 503: "server_error"}


class Refusal(Exception):
    """A request that is not answered. status: of HTTP. code, param: as in OpenAI's errors."""

    def __init__(self, status: int, text: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.code, self.param = status, text, code, param

    @property
    def body(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        kind = KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": self.text, "type": kind, "param": self.param, "code": self.code}}
