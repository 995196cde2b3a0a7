"""Effects that wait until the commit that they depend on is released, in order, and how many.  No threads or clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

#: Bytes that may wait: of messages, and what they and the callbacks take beside.
RELEASE_BYTES: Final = 64 * 1024 * 1024
#: Commits whose effects may wait.
RELEASE_COMMITS: Final = 1_000
#: What a callback with its value, or a message beside its payload, takes.
_BESIDE_BYTES: Final = 250


class Effect(NamedTuple):
    """A callback, and what it is called with."""

    callback: Callable[[Any], None]
    value: Any
    is_answer: bool  #: whether somebody waits for it, who gets an error otherwise


class _Commit(NamedTuple):
    lsn: int
    effects: list[Effect]
    size: int


class Releases:
    """Effects by the number of their commit, which only grows.

    Attributes:
        size: the bytes that wait.
    """

    def __init__(self, most_bytes: int = RELEASE_BYTES, most_commits: int = RELEASE_COMMITS) -> None:
        self.size = 0
        self._most_bytes = most_bytes
        self._most_commits = most_commits
        self._waiting: deque[_Commit] = deque()

    @property
    def is_full(self) -> bool:
        """Whether no further commit may be made until something is released."""
        return self.size > self._most_bytes or len(self._waiting) >= self._most_commits

    def add(self, lsn: int, effects: list[Effect]) -> None:
        """Have effects wait for a commit, behind all others; of one commit they may come in several parts."""
        size = sum(map(_size, effects))
        self.size += size
        if self._waiting and self._waiting[-1].lsn == lsn:
            last = self._waiting.pop()
            last.effects.extend(effects)
            effects, size = last.effects, last.size + size
        self._waiting.append(_Commit(lsn, effects, size))

    def has(self, released: int) -> bool:
        """Return whether something may leave once this commit is released."""
        return bool(self._waiting) and self._waiting[0].lsn <= released

    def release(self, released: int) -> list[Effect]:
        """Return what may leave, in order, now that all commits up to this one are released."""
        effects: list[Effect] = []
        while self.has(released):
            commit = self._waiting.popleft()
            self.size -= commit.size
            effects += commit.effects
        return effects

    def clear(self) -> list[Effect]:
        """Return all that waits, in order; it waits no longer."""
        return self.release(self._waiting[-1].lsn) if self._waiting else []


def _size(effect: Effect) -> int:
    if effect.is_answer:
        return _BESIDE_BYTES
    return _BESIDE_BYTES + sum([_BESIDE_BYTES + len(getattr(each, "payload", b"")) for each in effect.value])
