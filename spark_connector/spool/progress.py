"""What has become of moving messages into a spool, and what a query is told of it.  Pure: the time is passed in.

Theory of operation
    What is in the spool is read first.  So a query fails for what hinders the moving only where the spool has nothing
    new for it: at once if that is for the user to change (a wrong password, a full disk), and after a time if it may
    pass by itself: the broker is away; or it refuses what it did not refuse before, as one does that is starting.

    A foreign broker does not say how much a queue has.  But one that has messages does not let a consumer wait for
    long.  So what was there at a moment has come once the consumer has waited for a short time in all since then,
    whether or not further messages came between.  The beginning of each wait does not count: it takes a while until
    credit has reached the broker and messages have come back, or a new connection has begun.
"""

from __future__ import annotations

import attrs

from broker_adapter.errors import ConnectionLostException, JMSException, OperationTimedOutException

#: How long a consumer has to have waited until a queue counts as read, in seconds, without the beginning of each wait.
QUIET_SECONDS = 2.0
#: The beginning of a wait, in seconds.
BEGINNING_SECONDS = 0.8
#: How long a broker may refuse what it did not refuse before, in seconds.
REFUSAL_SECONDS = 60.0


@attrs.frozen
class Progress:
    """How far the moving has come.

    Attributes:
        moved: messages that were taken over since the spool was opened.
        waited_seconds: for how long, in all, the consumer could have got a message and got none.
        quiet_seconds: the same without the beginning of each wait.
        this_wait_seconds: for how long it has waited since the last message, or since something hindered it.
        error: what hinders it now; None: nothing.
        failing_since: when that began, by a clock that is never set.
        is_ours: whether it hinders us, and not the broker.
    """

    moved: int = 0
    waited_seconds: float = 0.0
    quiet_seconds: float = 0.0
    this_wait_seconds: float = 0.0
    error: JMSException | None = None
    failing_since: float = 0.0
    is_ours: bool = False

    def with_moved(self, messages: int) -> Progress:
        """So many more were taken over: nothing hinders it."""
        return attrs.evolve(self, moved=self.moved + messages, this_wait_seconds=0.0, error=None)

    def with_wait(self, seconds: float) -> Progress:
        """The consumer has waited for so long, and got none: nothing hinders it."""
        this_wait = self.this_wait_seconds + seconds
        return attrs.evolve(
            self,
            waited_seconds=self.waited_seconds + seconds,
            quiet_seconds=self.quiet_seconds + min(seconds, max(0.0, this_wait - BEGINNING_SECONDS)),
            this_wait_seconds=this_wait,
            error=None,
        )

    def with_error(self, error: JMSException, now: float, *, is_ours: bool) -> Progress:
        """Something hinders it."""
        since = now if self.error is None else self.failing_since
        return attrs.evolve(self, error=error, failing_since=since, is_ours=is_ours, this_wait_seconds=0.0)

    def failure(self, now: float, tolerance_seconds: float) -> JMSException | None:
        """Return what a query that has nothing else to do is to be told.

        Args:
            now: by the clock of ``failing_since``.
            tolerance_seconds: how long the broker may be away.
        """
        if self.error is None or now - self.failing_since < self._allowance(self.error, tolerance_seconds):
            return None
        return self.error

    def _allowance(self, error: JMSException, tolerance_seconds: float) -> float:
        if self.is_ours:
            return 0.0
        if isinstance(error, ConnectionLostException | OperationTimedOutException):
            return tolerance_seconds
        return min(REFUSAL_SECONDS, tolerance_seconds) if self.moved or self.waited_seconds else 0.0

    def has_caught_up(self, since: Progress, most: int) -> bool:
        """Return whether what the broker had at an earlier moment is here.

        Args:
            since: how far it had come then.
            most: messages after which it counts as here in any case, since other programs may send without end.
        """
        return self.quiet_seconds - since.quiet_seconds >= QUIET_SECONDS or self.moved - since.moved >= most
