"""Episodes of the same task, as they come in, and which of them make a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from renshu.proxy.episode import Episode
from renshu.types import Group, Task


@dataclass
class OpenGroup:
    """Episodes of one task that are compared with each other."""

    task: str
    members: list[Episode] = field(default_factory=list)

    def complete(self, size: int) -> bool:
        return len(self.members) >= size and all(episode.score is not None for episode in self.members)


class Groups:
    """The groups that no step has learned from yet, in the order in which they began."""

    def __init__(self) -> None:
        self._open: list[OpenGroup] = []

    @property
    def ended(self) -> int:
        """Episodes that are over and wait for their step."""
        return sum(episode.score is not None for group in self._open for episode in group.members)

    def complete(self, size: int) -> int:
        """Groups that wait for their step."""
        return sum(group.complete(size) for group in self._open)

    def waiting(self, task: str) -> int:
        """Episodes of a task, open or over."""
        return sum(len(group.members) for group in self._open if group.task == task)

    def add(self, episode: Episode, size: int) -> None:
        """Put an episode into the first group of its task with room, or a new one."""
        for group in self._open:
            if group.task == episode.task and len(group.members) < size:
                group.members.append(episode)
                return
        self._open.append(OpenGroup(episode.task, [episode]))

    def take(self, count: int, size: int) -> list[Group] | None:
        """The first `count` complete groups, once there are as many."""
        ready = [group for group in self._open if group.complete(size)][:count]
        if len(ready) < count:
            return None
        self._open = [group for group in self._open if group not in ready]
        return [_group(group.task, group.members) for group in ready]

    def take_ended(self) -> list[Group]:
        """Whatever is over, complete or not; what is still open waits for a later step."""
        taken = []
        for group in self._open:
            ended = [episode for episode in group.members if episode.score is not None]
            group.members = [episode for episode in group.members if episode.score is None]
            if ended:
                taken.append(_group(group.task, ended))
        self._open = [group for group in self._open if group.members]
        return taken

    def clear(self) -> list[Episode]:
        """Forget all; returns the episodes."""
        episodes = [episode for group in self._open for episode in group.members]
        self._open = []
        return episodes


def _group(task: str, episodes: Sequence[Episode]) -> Group:
    return Group(Task(task), tuple(episode.trajectory() for episode in episodes))
