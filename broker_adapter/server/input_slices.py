"""How much of a connection's input is taken at once, so that others have their turn.  Pure.

The same number of bytes may mean one message, or thousands of frames each of which costs time.  So each slice of input
is as large as what a turn may take at the rate of the slices before it.
"""

from __future__ import annotations

from typing import Final

from broker_adapter.settings import KIB

#: How long one connection may keep the others waiting for a turn, in seconds.
_TURN_SECONDS: Final = 0.02
#: Bytes of a slice: at least, at first, and at most.
_LEAST_BYTES: Final = KIB
_FIRST_BYTES: Final = 16 * KIB
_MOST_BYTES: Final = 256 * KIB
#: A slice that takes so many turns makes the connection's slices small for a while, whatever they cost.
_MUCH_TOO_LONG: Final = 5
#: By how many bytes its slices may become larger again with each that took less than half a turn.
_REGAINED_BYTES: Final = KIB


class InputSlices:
    """The input of one connection that is not taken yet.

    Attributes:
        rest: it.
        size: how many bytes are to be taken next, at most.
    """

    __slots__ = ("_most", "rest", "size")

    def __init__(self) -> None:
        self.rest = bytearray()
        self.size = _FIRST_BYTES
        self._most = _MOST_BYTES

    def __repr__(self) -> str:
        return f"<InputSlices size={self.size} rest={len(self.rest)}>"

    def cut(self, data: bytes) -> bytes:
        """The first slice of what has come while there was no rest; what is behind it is the rest."""
        if len(data) <= self.size:
            return data
        self.rest += memoryview(data)[self.size :]
        return data[: self.size]

    def next(self) -> bytes:
        """The next slice of the rest."""
        data = bytes(self.rest[: self.size])
        del self.rest[: len(data)]
        return data

    def took(self, size: int, seconds: float) -> None:
        """A slice has been taken: the next one is as large as a turn allows, and at most twice as large as this one.

        Args:
            size: of the slice, in bytes.
            seconds: of CPU that it has taken.
        """
        if seconds > _TURN_SECONDS:
            self.size = max(_LEAST_BYTES, int(size * _TURN_SECONDS / seconds))
            if seconds > _MUCH_TOO_LONG * _TURN_SECONDS:
                self._most = _FIRST_BYTES
        elif size >= self.size:
            if 2 * seconds < _TURN_SECONDS:
                self._most = min(_MOST_BYTES, self._most + _REGAINED_BYTES)
            self.size = min(self._most, 2 * size, int(size * _TURN_SECONDS / max(seconds, 1e-6)))
