"""How many messages a consumer holds ahead of the application, where neither it nor an option says that.

Theory of operation
    Messages that one consumer holds are kept from others.  A fast consumer needs many of them, so that it never waits
    for the broker; a slow one needs hardly any.  How fast a consumer is shows only as it consumes.  So the window
    begins with one message.  It becomes what the consumer has lately used in half a second, at most twice as large at a
    time, and smaller by not asking again for what is used.

    The time for which a consumer waits for messages is no work: where the network is slow, it is much longer than that.
"""

from __future__ import annotations

from broker_adapter import LARGEST_WINDOW

#: The work that a consumer holds ahead, in seconds.
_WORK_SECONDS = 0.5
#: Windows up to this size are refilled message by message, so that slow consumers share what is left to the last one:
#: at most so many requests in half a second.
_SMALL = 32


class Window:
    """The window of one consumer.  It reads no clock: the time is an argument, in seconds from any start.

    Attributes:
        size: messages that the consumer may hold which the application has not finished.
        step: how many of them are used before more are asked for.
    """

    __slots__ = ("_goal", "_since", "_used", "_waited", "size", "step")

    def __init__(self) -> None:
        """The window of a consumer of which nothing is known."""
        self.size = self.step = self._goal = 1
        self._since: float | None = None  #: when what follows was zero
        self._used = 0
        self._waited = 0.0

    def waited(self, seconds: float) -> None:
        """The consumer had nothing to do for so long.

        A message that has come, and that waits for the thread of its session, is something to do.
        """
        self._waited += seconds

    def refill(self, used: int, now: float) -> int:
        """Fit the size to what was used; returns how many messages to ask for, which may be none.

        Args:
            used: messages used since the last call, at least ``step`` and at most ``size``.
            now: the time.
        """
        if self._since is None:  # what the application does with the first message, ``receive`` cannot know yet
            self._since, self._waited = now, 0.0
            return used
        self._used += used
        seconds = now - self._since - self._waited
        if self._used >= self.size or seconds >= _WORK_SECONDS:
            fitting = LARGEST_WINDOW if seconds <= 0 else int(self._used / seconds * _WORK_SECONDS)
            self._goal = max(1, min(fitting, 2 * self.size, LARGEST_WINDOW))
            self._since, self._used, self._waited = now, 0, 0.0
        size = max(self._goal, self.size - used)
        more = used + size - self.size
        self.size = size
        self.step = 1 if size <= _SMALL else size // 2
        return more
