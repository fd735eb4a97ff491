"""Values that remember what they are compared with: a text with a list, a number with a text.

Such a comparison is never true and never an error, so the reward is 0 for ever. The values behave as the
plain ones do; they are only put into episodes that are played for the check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from renshu.types import Task, Trajectory

NUMBERS = (int, float)
KINDS = (str, list, tuple, dict, set)


@dataclass
class Witness:
    """What was seen. mismatches: (what, its type, the other's type); missing: keys asked for in vain."""

    mismatches: dict[tuple[str, str, str], int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)

    def compared(self, name: str, value: Any, other: Any) -> None:
        if _differ(value, other):
            key = (name, _kind(value), _kind(other))
            self.mismatches[key] = self.mismatches.get(key, 0) + 1

    def asked(self, key: str) -> None:
        self.missing[key] = self.missing.get(key, 0) + 1

    def task(self, task: Task) -> Task:
        """The task, its fields under observation."""
        return Task(
            task.id, _Fields({k: self.value(f"field {k!r}", v) for k, v in task.fields.items()}, self)
        )

    def trajectory(self, trajectory: Trajectory) -> Trajectory:
        """The episode, the texts of its messages under observation."""
        messages = (replace(m, content=self.value("the reply", m.content)) for m in trajectory.messages)
        return replace(trajectory, messages=tuple(messages))

    def column(self, name: str, value: Any) -> list[Any]:
        """The column of one row that TRL hands to a reward function."""
        column: list[Any] = _list([self.value(f"column {name!r}", value)], f"column {name!r}", self)
        return column

    def value(self, name: str, value: Any) -> Any:
        """The value under observation; of a type that cannot be, the value itself."""
        kind = type(value)
        if kind is list:
            return _list([self.value(name, item) for item in value], name, self)
        if kind is dict:
            return _dict({key: self.value(name, item) for key, item in value.items()}, name, self)
        maker = _SPIES.get(kind)
        return maker(value, name, self) if maker else value


def _kind(value: Any) -> str:
    kinds = (str, bool, int, float, list, tuple, dict, set)
    return next((kind.__name__ for kind in kinds if isinstance(value, kind)), type(value).__name__)


def _differ(value: Any, other: Any) -> bool:
    """Whether values of these types are never equal, although somebody compares them."""
    if isinstance(value, bool) or isinstance(other, bool):
        return isinstance(value, KINDS) or isinstance(other, KINDS)
    if isinstance(value, NUMBERS) and isinstance(other, NUMBERS):
        return False
    kinds = (*KINDS, NUMBERS)
    own = next((kind for kind in kinds if isinstance(value, kind)), None)
    its = next((kind for kind in kinds if isinstance(other, kind)), None)
    return own is not None and its is not None and own is not its


Maker = Callable[[Any, str, Witness], Any]


def _spy(base: type[Any]) -> tuple[type[Any], Maker]:
    """A subclass of `base` whose comparisons are seen, all else as it is; and what makes one."""

    class Spy(base):  # type: ignore[misc]
        _name: str
        _witness: Witness

        def __eq__(self, other: object) -> Any:
            self._witness.compared(self._name, self, other)
            return base(self) == other

        def __ne__(self, other: object) -> Any:
            return not self == other

        __hash__ = base.__hash__

        def __reduce__(self) -> Any:  # a copy is a plain value
            return (base, (base(self),))

    def make(value: Any, name: str, witness: Witness) -> Any:
        spy = Spy(value)
        spy._name, spy._witness = name, witness
        return spy

    return Spy, make


def _kept(method: str, make: Maker) -> Callable[..., Any]:
    """The method of str, its result under observation as the text is."""
    plain = getattr(str, method)

    def kept(self: Any, *given: Any, **options: Any) -> Any:
        result = plain(self, *given, **options)
        if isinstance(result, list):
            return [make(part, self._name, self._witness) for part in result]
        return make(result, self._name, self._witness)

    return kept


_list, _dict = _spy(list)[1], _spy(dict)[1]
_Text, _text = _spy(str)
for _method in ("strip", "lstrip", "rstrip", "lower", "upper", "casefold", "title", "removeprefix"):
    setattr(_Text, _method, _kept(_method, _text))
for _method in ("removesuffix", "replace", "split", "splitlines", "__getitem__"):
    setattr(_Text, _method, _kept(_method, _text))
_SPIES: dict[type, Maker] = {int: _spy(int)[1], float: _spy(float)[1], str: _text}


class _Fields(dict[str, Any]):
    """The fields of a task; a key that is asked for in vain is remembered."""

    def __init__(self, fields: dict[str, Any], witness: Witness) -> None:
        super().__init__(fields)
        self._witness = witness

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self._witness.asked(key)
        return super().get(key, default)

    def __missing__(self, key: str) -> Any:
        self._witness.asked(key)
        raise KeyError(key)
