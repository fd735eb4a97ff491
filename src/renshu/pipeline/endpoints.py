"""Models behind an endpoint as arms: their names, where keys come from, where episodes go."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from renshu.engines.openai_chat import ChatModel
from renshu.engines.openai_client import Endpoint, Patience, checked_url, key_from
from renshu.errors import ConfigError
from renshu.evaluation.endpoint import Kept
from renshu.pipeline.provenance import version_of

PREFIX = "api:"
FORM = re.compile(r"api:(?P<model>.+?)@(?P<url>https?://.+)")
KEYS = {"api.openai.com": "OPENAI_API_KEY"}  # the only host that a key is sent to unasked
FOLDER = "comparison"


@dataclass(frozen=True)
class Address:
    """`api:MODEL@URL`."""

    model: str
    url: str

    @classmethod
    def read(cls, text: str) -> Address:
        """Raises ConfigError, which does not quote an address that may hold a password."""
        found = FORM.fullmatch(text)
        if found is None:
            raise ConfigError(
                "a model behind an endpoint is named api:MODEL@URL, e.g. api:gpt-x@https://api.openai.com/v1"
            )
        return cls(found["model"], checked_url(found["url"]))

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


def is_api(text: str) -> bool:
    return text.startswith(PREFIX)


@dataclass(frozen=True)
class Access:
    """How endpoints are asked. keys: names of environment variables by host. folder: for the episodes."""

    keys: Mapping[str, str] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)
    folder: Path = Path(FOLDER)

    @classmethod
    def of(
        cls,
        targets: Sequence[str],
        keys: Sequence[str] = (),
        at_once: int | None = None,
        folder: Path | None = None,
    ) -> Access:
        """keys: `NAME`, if one host is asked, or `HOST=NAME` each. Raises ConfigError."""
        hosts = list(dict.fromkeys(Address.read(_bare(target)).host for target in targets if is_api(target)))
        told = {host: KEYS[host] for host in hosts if host in KEYS}
        for entry in keys:
            host, equals, name = entry.rpartition("=")
            if not equals and len(hosts) != 1:
                raise ConfigError(
                    f"--api-key-env {name}: say for which host: {', '.join(hosts) or 'none is asked'} "
                    f"(HOST={name})"
                )
            host = host or hosts[0]
            if host not in hosts:
                raise ConfigError(f"--api-key-env {entry}: no model of {host} is asked")
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
                raise ConfigError("--api-key-env takes the name of an environment variable, not a key")
            told[host] = name
        patience = Patience() if at_once is None else replace(Patience(), at_once=at_once)
        return cls(told, patience, folder or Path(FOLDER))

    def model(self, address: Address) -> ChatModel:
        """Raises ConfigError if the key is missing, or the address takes none."""
        key = key_from(self.keys.get(address.host))
        return ChatModel(address.model, Endpoint(address.url, key=key, patience=self.patience))

    def kept(self, address: Address, sources: Mapping[str, str], environment: str, max_tokens: int) -> Kept:
        """The episodes on file that were played under these conditions, which the file's name stands for."""
        code = sorted(sources.items()) or version_of("renshu")  # built in: it has no file of its own
        conditions = [address.model, address.url, code, environment, max_tokens]
        mark = hashlib.sha256(json.dumps(conditions).encode()).hexdigest()[:12]
        name = re.sub(r"[^A-Za-z0-9._-]", "_", address.model)[:60]
        return Kept(self.folder / f"{name}-{mark}.jsonl")


def _bare(target: str) -> str:
    """Without `:base` or `:few-shot`."""
    return re.sub(r":(base|few-shot)$", "", target)
