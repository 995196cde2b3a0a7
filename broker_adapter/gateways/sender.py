"""What the sender of a gateway does next: when a batch is due, how large it is, what its answer means.  Pure.

Theory of operation
    A batch has at most ``batch_messages`` and ``batch_bytes``.  It is due when either waits, or when something has
    waited for ``batch_ms``.  It is read from the gateway's queue, handed over to the other site, and ended here when
    the other site has answered.

    Several batches are under way at a time, each read behind the one before it, and are answered and ended in order.
    Each says behind which position it stands, and the other site takes nothing of it unless it knows that position.
    So where a batch was cut, or had a message at its end that was refused, those behind it do nothing.  Their answers
    are awaited, and the next batch is read from the front.

    Where no answer comes, nothing is ended, and the next batch begins with the same messages: the other site knows the
    positions that it has applied, and leaves them out.  So nothing about a batch is kept here but what the queue has.

    A batch that the other site cannot read, or has no room for, is halved until it can be taken.  A single message or
    transaction that it cannot read is refused; one for which it has no room is tried again later.

    Where a message was refused there may be more of the kind, and each makes void what is under way behind it.  So the
    next batch is as large as what was done of this one, from there on they are doubled again, and for some batches one
    is under way at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker_adapter.engine.records.gateway_records import MAX_BATCH, GatewayRecord
from broker_adapter.errors import JMSException, MessageFormatException, ResourceAllocationException
from broker_adapter.wording import in_seconds

#: Batches that may be under way, and bytes above which no further one begins.
IN_FLIGHT: Final = 32
_IN_FLIGHT_BYTES: Final = 8 << 20
#: Batches that are sent one at a time behind one of which a message was refused.
_ALONE: Final = 10
#: Time between two records of the log about a failure that lasts, in seconds.
_TELL_SECONDS: Final = 3600.0
#: What is read and not handed over, as ``read_gateway`` and ``end_gateway_batch`` call it.
_LEFT_OUT: Final = ("expired", "filtered", "conflated")
#: Time between two alerts, in seconds.
_ALERT_SECONDS: Final = 60.0


class Batch(NamedTuple):
    """A batch that is under way."""

    positions: Sequence[int]  #: of its messages; none: all that was read is left out
    found: Mapping[str, Any]  #: what ``read_gateway`` has answered, without the messages
    begun: float  #: when it was due
    behind: int  #: the last position of those that were under way ahead of it; 0: none

    @property
    def last(self) -> int:
        """The position of the last message that was handed over; 0: none was."""
        return self.positions[-1] if self.positions else 0


class Sender:
    """The rules of one sender.

    Args:
        retry_seconds: time from an attempt that failed to the next one.

    Attributes:
        most_under_way: batches that the other site takes at a time.
        under_way: the batches that were not answered yet, in order.
        trouble: why the last attempt failed; empty: it did not.
    """

    def __init__(self, retry_seconds: float) -> None:
        self._retry_seconds = retry_seconds
        self._url: str | None = None
        self._waits_since: float | None = None  # when the first of those behind what is under way may have come
        self._unsent_since: float | None = None  # the same of all that wait
        self._retry_at = 0.0
        self._failing_since: float | None = None
        self._tell_at = 0.0
        self._told: type[JMSException] | None = None  # of the failure that the log was told last
        self._alert_at = 0.0
        self._most = MAX_BATCH
        self._alone = 0  # batches that are still to be sent one at a time
        self._void = 0  # batches under way behind one that was not done whole: they do nothing
        self.most_under_way = IN_FLIGHT
        self.under_way: deque[Batch] = deque()
        self.trouble = ""

    def __repr__(self) -> str:
        return f"<Sender {len(self.under_way)} batches under way, trouble={self.trouble!r}>"

    def seconds_until_due(self, record: GatewayRecord, messages: int, size: int, now: float) -> float | None:
        """Return when the next batch is due.

        Args:
            record: of the gateway, which is running.
            messages: that wait, with those under way.
            size: their bytes.
            now: the time, in seconds of a steady clock.

        Returns:
            Seconds, 0: now; None: nothing waits, or as much is under way as may be.
        """
        if record.url != self._url:  # another site: what the last one did says nothing
            self._url, self._retry_at = record.url, 0.0
        if not messages:
            self._unsent_since = None
        elif self._unsent_since is None:
            self._unsent_since = now
        handed_over = sum(each.found["bytes"] for each in self.under_way)
        messages -= sum(each.found["messages"] for each in self.under_way)
        if messages <= 0:
            self._waits_since = None
            return None
        if self._waits_since is None:
            self._waits_since = now
        # After trouble one batch shows whether it is over.
        most = min(record.batch_messages, self._most)
        is_careful = self.trouble or self._alone
        if (
            self._void
            or len(self.under_way) >= (1 if is_careful else self.most_under_way)
            or handed_over >= _IN_FLIGHT_BYTES
        ):
            return None
        if now < self._retry_at:
            return self._retry_at - now
        due = self._waits_since + record.batch_ms / 1000
        enough = messages >= most or size - handed_over >= record.batch_bytes
        return 0.0 if enough or self.trouble or now >= due else due - now

    def alert(self, record: GatewayRecord, now: float) -> str | None:
        """Return what the log says of messages that wait for too long; None: nothing now."""
        since = self._unsent_since
        if not record.alert_ms or since is None or now < self._alert_at or now - since < record.alert_ms / 1000:
            return None
        self._alert_at = now + _ALERT_SECONDS
        return f"nothing was sent for {in_seconds(round(now - since, 1))}, and messages wait"

    def limits(self, record: GatewayRecord) -> dict[str, int]:
        """Return the arguments of ``read_gateway`` for the next batch: behind which position, and how much."""
        after = self.under_way[-1].found["through"] if self.under_way else 0
        return {
            "after": after,
            "max_messages": min(record.batch_messages, self._most),
            "max_bytes": record.batch_bytes,
        }

    def batch_of(self, found: Mapping[str, Any], site: int, now: float) -> dict[str, Any]:
        """Note a batch as under way.

        Args:
            found: what ``read_gateway`` has answered; something was read.
            site: the number of this one.
            now: when it was due.

        Returns:
            The arguments of ``apply_batch``.
        """
        columns = columns_of(found["entries"])
        behind = next((each.last for each in reversed(self.under_way) if each.last), 0)
        self.under_way.append(Batch(columns["positions"], {**found, "entries": ()}, now, behind))
        if found["waiting"] <= sum(each.found["messages"] for each in self.under_way):  # else the rest has waited
            self._waits_since = now
        return {
            "site": site,
            "sender": found["sender"],
            "after": found["applied"],
            "behind": behind,
            "joined": found["joined"],
            **columns,
        }

    def answered(self, answer: Mapping[str, Any]) -> dict[str, Any] | None:
        """Note what the other site has answered to the first batch under way.

        Args:
            answer: of ``apply_batch``; empty: nothing was handed over, since all was left out.

        Returns:
            The arguments of ``end_gateway_batch`` without the name; None: nothing ends.

        Raises:
            JMSException: that is no answer, or it does not say why nothing was taken.
        """
        batch = self.under_way[0]
        if batch.positions and not _is_answer(answer, batch.behind):
            raise JMSException(f"the other site has given an answer that is none: {answer!r:.200}")
        found, through = batch.found, answer.get("through", 0)
        if self._void or (batch.positions and not through):
            self._nothing_taken()
            return None
        self.under_way.popleft()
        if through < batch.last:
            self._void = len(self.under_way)
            self._most = max(1, bisect_right(batch.positions, through))
        else:
            through = found["through"]
            self._most = min(MAX_BATCH, self._most * 2)
        self._alone = _ALONE if answer.get("refused") else max(0, self._alone - 1)
        self._unsent_since = batch.begun
        done = {name: answer[name] for name in ("refused", "applied") if name in answer}
        return {"through": through, **{name: found[name] for name in ("sender", *_LEFT_OUT)}, **done}

    def not_taken(self, error: MessageFormatException | ResourceAllocationException) -> dict[str, Any] | None:
        """Note that the other site cannot read the first batch under way, or has no room: the next is half as large.

        Args:
            error: what the other site has answered.

        Returns:
            As ``answered``; a single message or transaction that cannot be read is refused.

        Raises:
            ResourceAllocationException: there is no room for a single one.
        """
        batch = self.under_way[0]
        positions, found = batch.positions, batch.found
        if not self._void:
            if len(positions) - len(found["joined"]) == 1:
                if isinstance(error, ResourceAllocationException):
                    raise error
                refused = [(position, error.reason) for position in positions]
                return self.answered({"through": batch.last, "refused": refused, "applied": found["applied"]})
            self._most = max(1, min(self._most, len(positions)) // 2)
        self._nothing_taken()
        return None

    def _nothing_taken(self) -> None:
        """End the first batch under way, of which nothing was taken; those behind it do nothing either."""
        self.under_way.popleft()
        self._void = self._void - 1 if self._void else len(self.under_way)

    def forget(self) -> None:
        """Have nothing under way any more: no answer comes, or it says nothing."""
        self.under_way.clear()
        self._void = 0

    def works(self, now: float) -> str | None:
        """Note that the other site has answered; returns what the log says of that, or None."""
        self.trouble = ""
        since, self._failing_since = self._failing_since, None
        return None if since is None else f"the other site takes messages again, after {in_seconds(round(now - since))}"

    def failed(self, error: JMSException, now: float) -> str | None:
        """Note that an attempt failed, and that nothing is under way any more.

        Returns:
            What the log says of that: at first, when it is a failure of another kind, and once an hour.
        """
        self.forget()
        self._retry_at = now + self._retry_seconds
        self.trouble = error.reason
        if self._failing_since is None:
            self._failing_since = now
        elif now < self._tell_at and type(error) is self._told:
            return None
        self._tell_at, self._told = now + _TELL_SECONDS, type(error)
        return f"nothing can be sent, and is tried again each {in_seconds(self._retry_seconds)}: {error.reason}"


def columns_of(entries: Sequence[tuple[int, bytes, int, int, bytes]]) -> dict[str, Sequence[Any]]:
    """Return the entries that ``read_gateway`` has answered as the arguments of ``apply_batch``."""
    positions, kind_of, numbers, previous, messages = zip(*entries, strict=True) if entries else ((),) * 5
    kinds = [*dict.fromkeys(kind_of)]
    places = {kind: place for place, kind in enumerate(kinds)}
    return {
        **{"positions": [*positions], "kinds": kinds, "kind_of": [places[kind] for kind in kind_of]},
        **{"numbers": [*numbers], "previous": [*previous], "messages": [*messages]},
    }


def _is_answer(answer: Any, behind: int) -> bool:
    """Return whether this can be what ``apply_batch`` answers to a batch.

    Args:
        answer: what the other site has answered.
        behind: where the batch stands; only one that stands behind another one may be passed over.
    """
    if not isinstance(answer, Mapping):
        return False
    through, applied, refused = (answer.get(each) for each in ("through", "applied", "refused"))
    return type(through) is type(applied) is int and isinstance(refused, Sequence) and through >= (0 if behind else 1)
