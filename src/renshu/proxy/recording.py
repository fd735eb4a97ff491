"""All tokens of one episode of an agent that runs elsewhere, as the model read and sampled them."""

from __future__ import annotations

from collections.abc import Sequence

from renshu.engines import Generated
from renshu.serve.paths import Opening
from renshu.types import Message, Score, Segment, Stop, Task, Trajectory


class Recording:
    """The paths of an episode. A prompt that begins with all tokens of a path goes on with it; any other
    (a history that was trimmed or rewritten, other tools, an agent within the agent) is a new path.

    So every sampled token is in exactly one path, as sampled; in all others it is context.
    """

    def __init__(self) -> None:
        self.turns = self.calls = 0
        self._paths: list[list[Segment]] = []
        self._ids: list[list[int]] = []  # of each path, all its tokens
        self._last = -1  # the path of the latest turn
        self._messages: tuple[Message, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is a sampled token."""
        return bool(self._paths)

    def add(self, opening: Opening, generated: Generated, said: Message) -> None:
        """One turn: its prompt, what was sampled behind it, and what that says."""
        if not generated.segment.ids:
            return
        place = self._place(opening.ids)
        if place is None:
            place = len(self._paths)
            self._paths.append([])
            self._ids.append([])
        foreign = opening.ids[len(self._ids[place]) :]
        if foreign:
            self._paths[place].append(Segment(tuple(foreign)))
        self._paths[place].append(generated.segment)
        self._ids[place] = [*opening.ids, *generated.segment.ids]
        self._last, self._messages = place, (*opening.messages, said)
        self.turns += 1
        self.calls += len(said.tool_calls)

    def trajectory(self, task: Task, stop: Stop, score: Score) -> Trajectory:
        """The episode. Its path is that of the latest turn, the others are its forks."""
        paths = [tuple(path) for path in self._paths]
        last = paths.pop(self._last) if paths else ()
        counts = {"turns": self.turns, "calls": self.calls}
        return Trajectory(task, last, self._messages, stop, score, tuple(paths), counts)

    def _place(self, prompt: Sequence[int]) -> int | None:
        """The longest path that the prompt begins with."""
        found = [n for n, ids in enumerate(self._ids) if list(prompt[: len(ids)]) == ids]
        return max(found, key=lambda n: len(self._ids[n]), default=None)
