"""What the sender of a gateway does next: when a batch is due, how large it is, what its answer means.  Pure.

Theory of operation
    One batch is under way at a time.  It is read from the front of the gateway's queue, handed over to the other site,
    and ended here when the other site has answered.  While one is under way the next one may be read.  Where no answer
    comes, nothing is ended, and the next batch begins with the same messages: the other site knows the positions that
    it has applied, and leaves them out.  So nothing about a batch is kept here but what the queue has.

    A batch is due when ``batch_messages`` or ``batch_bytes`` wait, or when something has waited for ``batch_ms``.  It
    takes all that waits, up to ``batch_bytes``, so that a backlog goes in large batches.

    A batch that the other site cannot read is halved until it can, and a single message that it cannot read is refused,
    or a transaction of which it cannot read a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker_adapter.engine.records.gateway_records import MAX_BATCH, GatewayRecord
from broker_adapter.errors import JMSException, MessageFormatException
from broker_adapter.wording import in_seconds

#: Time between two records of the log about a failure that lasts, in seconds.
_TELL_SECONDS: Final = 3600.0
#: Time between two alerts, in seconds.
_ALERT_SECONDS: Final = 60.0


class Sender:
    """The rules of one sender.

    Args:
        retry_seconds: time from an attempt that failed to the next one.

    Attributes:
        trouble: why the last attempt failed; empty: it did not.
    """

    def __init__(self, retry_seconds: float) -> None:
        self._retry_seconds = retry_seconds
        self._url: str | None = None
        self._waits_since: float | None = None  # when the first of those that wait may have come
        self._begun = 0.0  # when a batch was due, and read
        self._retry_at = 0.0
        self._failing_since: float | None = None
        self._tell_at = 0.0
        self._alert_at = 0.0
        self._most = MAX_BATCH
        self.trouble = ""

    def __repr__(self) -> str:
        return f"<Sender trouble={self.trouble!r}>"

    def seconds_until_due(self, record: GatewayRecord, messages: int, size: int, now: float) -> float | None:
        """Return when the next batch is due.

        Args:
            record: of the gateway, which is running.
            messages: that wait.
            size: their bytes.
            now: the time, in seconds of a steady clock.

        Returns:
            Seconds, 0: now; None: nothing waits.
        """
        if record.url != self._url:  # another site: what the last one did says nothing
            self._url, self._retry_at = record.url, 0.0
        if not messages:
            self._waits_since = None
            return None
        if self._waits_since is None:
            self._waits_since = now
        if now < self._retry_at:
            return self._retry_at - now
        due = self._waits_since + record.batch_ms / 1000
        if now < due and messages < record.batch_messages and size < record.batch_bytes and not self.trouble:
            return due - now
        self._begun = now
        return 0.0

    def alert(self, record: GatewayRecord, now: float) -> str | None:
        """Return what the log says of messages that wait for too long; None: nothing now."""
        since = self._waits_since
        if not record.alert_ms or since is None or now < self._alert_at or now - since < record.alert_ms / 1000:
            return None
        self._alert_at = now + _ALERT_SECONDS
        return f"nothing was sent for {in_seconds(round(now - since, 1))}, and messages wait"

    @property
    def max_messages(self) -> int:
        """How many messages the next batch may have."""
        return self._most

    def refused_whole(self, found: Mapping[str, Any], error: MessageFormatException) -> dict[str, Any] | None:
        """Return what the other site would have answered, had it refused the only message or transaction of a batch.

        Args:
            found: the batch, as ``read_gateway`` has it.
            error: what the other site has answered.

        Returns:
            The answer; None: the next batch is half as large.
        """
        positions = [position for position, _ in found["entries"]]
        if len(positions) - len(found["joined"]) > 1:
            self._most = max(1, min(self._most, len(positions)) // 2)
            return None
        refused = [(position, error.reason) for position in positions]
        return {"through": positions[-1], "refused": refused, "applied": found["applied"]}

    def applied(self, now: float) -> str | None:
        """Note that the other site has answered; returns what the log says of that, or None."""
        self._most = min(MAX_BATCH, self._most * 2)
        self._waits_since = self._begun
        self.trouble = ""
        since, self._failing_since = self._failing_since, None
        return None if since is None else f"the other site takes messages again, after {in_seconds(round(now - since))}"

    def failed(self, error: JMSException, now: float) -> str | None:
        """Note that an attempt failed; returns what the log says of that: at first, and once an hour."""
        self._retry_at = now + self._retry_seconds
        self.trouble = error.reason
        if self._failing_since is None:
            self._failing_since = now
        elif now < self._tell_at:
            return None
        self._tell_at = now + _TELL_SECONDS
        return f"nothing can be sent, and is tried again each {in_seconds(self._retry_seconds)}: {error.reason}"


def batch_of(found: Mapping[str, Any], site: int) -> dict[str, Any]:
    """Return the arguments of ``apply_batch`` for what was read.

    Args:
        found: what ``read_gateway`` has answered; there are messages.
        site: the number of this one.
    """
    entries: Sequence[tuple[int, bytes]] = found["entries"]
    return {
        "site": site,
        "sender": found["sender"],
        "after": found["applied"],
        "positions": [position for position, _ in entries],
        "messages": [message for _, message in entries],
    }


def has_more(found: Mapping[str, Any]) -> bool:
    """Return whether more waits than what was read; ``found``: what ``read_gateway`` has answered."""
    return int(found["waiting"]) > sum(len(found[each]) for each in ("entries", "expired", "filtered"))


def follows(
    record: GatewayRecord, found: Mapping[str, Any], answer: Mapping[str, Any], following: Mapping[str, Any]
) -> bool:
    """Return whether what was read behind a batch is the next one, and due.

    Args:
        record: of the gateway.
        found: the batch, as ``read_gateway`` has it.
        answer: what ``apply_batch`` has answered.
        following: what ``read_gateway`` has behind the batch.
    """
    entries = following["entries"]
    if answer["through"] != found["entries"][-1][0] or not entries:
        return False
    return len(entries) >= record.batch_messages or sum(len(message) for _, message in entries) >= record.batch_bytes


def end_of(found: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of ``end_gateway_batch``, without the name.

    Args:
        found: what ``read_gateway`` has answered.
        answer: what ``apply_batch`` has answered; None: nothing was handed over, since all was left out.
    """
    left_out = {"sender": found["sender"], "expired": found["expired"], "filtered": found["filtered"]}
    if answer is None:
        return {"through": found["through"], **left_out}
    is_whole = answer["through"] == found["entries"][-1][0]
    through = found["through"] if is_whole else answer["through"]
    return {"through": through, **left_out, "refused": answer["refused"], "applied": answer["applied"]}
