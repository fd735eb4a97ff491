"""The exact versions a run was made with, as a file that pip installs from."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from renshu.pipeline.provenance import PACKAGES, version_of

_LINE = re.compile(r"([A-Za-z0-9._-]+)==(\S+)")


def lock_text(provenance: Mapping[str, Any]) -> str:
    """`name==version` of Renshu and of all it needs, one a line; the version of Python as a comment.

    What the run's own record says goes before what is installed now.
    """
    versions = dict(_needed("renshu"))
    versions |= {name: str(provenance[name]) for name in PACKAGES if provenance.get(name)}
    lines = [f"{name}=={version}" for name, version in sorted(versions.items())]
    return "\n".join([f"# python {provenance['python']}", *lines, ""])


def version_differences(lock: str) -> list[str]:
    """What is installed here otherwise than in a lock: `torch: 2.6.0 in the lock, 2.7.1 here`."""
    python = re.match(r"# python (\S+)", lock)
    wanted = {"python": python[1]} if python else {}
    wanted |= {match[1]: match[2] for line in lock.splitlines() if (match := _LINE.fullmatch(line.strip()))}
    return [
        f"{name}: {version} in the lock, {here} here"
        for name, version in wanted.items()
        if (here := platform.python_version() if name == "python" else version_of(name)) != version
    ]


def _needed(name: str) -> Iterator[tuple[str, str]]:
    """Names and versions of a package and of everything it requires, without extras."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        key = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if key in seen:
            continue
        seen.add(key)
        try:
            found = distribution(key)
        except PackageNotFoundError:  # required on other systems only
            continue
        yield key, found.version
        for text in found.requires or ():
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
