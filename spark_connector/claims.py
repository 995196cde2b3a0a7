"""The claim of a streaming query to its queues: no other query removes messages of them.

Theory of operation
    A query has an id, which its reader generates for the first offset; each offset in Spark's checkpoint has it, so a
    restart continues with it.  A queue is claimed under this id when the first batch is planned: by then Spark's log
    has an offset with it, so the restart of a query has the id however the query has ended.  From then on the broker
    refuses other ids, in requests for positions and for settlement: also those of a query that was suspended meanwhile.

    A restart claims it again, so that others are told which application runs the query now.

    A claim ends where Spark ends the query (:func:`watch_for_end`) while that waits for messages: there is no batch
    that Spark may run again.  What was killed, or has failed in a batch, keeps its queues.
"""

from __future__ import annotations

import logging
import platform
import secrets
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from sdk import Connection, InvalidDestinationException
from spark_connector.batch_reader import range_reader, source_of
from spark_connector.connections import with_retries
from spark_connector.offsets import Offset
from spark_connector.options import SourceOptions
from spark_connector.sentences import is_worker

_log = logging.getLogger(f"holdfast.{__name__}")
#: The id of a query that needs no claim: it alone has what it reads.
NO_CLAIM: Final = ""
#: After so many seconds the signal that ends a query ends this process whatever it does.
_END_SECONDS: Final = 10

#: Set when Spark has ended the query of this process.
_is_ended = threading.Event()


def new_id() -> str:
    """Return an id that no other query has."""
    return secrets.token_hex(8)


class Claim:
    """The claim of a query to one queue, or to a subscription.

    Args:
        options: which one, with a URL that any process can use.
        application: of Spark, for the text that others get.
        claim: the id of the query, as its offsets have it.

    Attributes:
        id: as given; a restart finds another one in its offsets.
        takes_over: whether the queue is still to be taken from another query (option ``takeOver``).
    """

    def __init__(self, options: SourceOptions, application: str, claim: str) -> None:
        self.id = claim
        self._options = options
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._holder = f"{application or 'a Spark application'} on host {platform.node()}, since {now}"
        self._held: tuple[str, str, str] | None = None
        self.takes_over = options.take_over and claim != NO_CLAIM

    def take_over(self, connection: Connection) -> None:
        """Take the queue from another query, once, ahead of the first question that it would have refused."""
        if self.takes_over:
            with suppress(InvalidDestinationException):  # it is made when the broker is asked for its positions
                range_reader(connection, self._options).claim(self.id, self._holder, take_over=True)
            self.takes_over = False

    def hold(self, offset: Offset) -> None:
        """Claim the queue, once in each incarnation and run of the broker: it may have been restored from a backup.

        Args:
            offset: that Spark's log has.

        Raises:
            QueueClaimedException: another query has it.
            JMSException: the broker stayed away for longer than ``retrySeconds``.
        """
        self.id = offset.claim
        wanted = offset.claim, offset.incarnation, offset.run
        if not self.id or wanted == self._held:
            return

        def claim(connection: Connection) -> None:
            self.take_over(connection)
            range_reader(connection, self._options).claim(self.id, self._holder)

        with_retries(self._options, claim)
        self._held = wanted

    def end(self) -> None:
        """End the claim, also where an earlier run of the query has made it; never raises."""
        try:
            if self.id:
                with_retries(self._options, lambda each: range_reader(each, self._options).end_claim(self.id), 0)
        except InvalidDestinationException:
            pass  # the queue was deleted, and its claim with it
        except Exception as error:  # Spark would show it in place of why the query has ended
            _log.warning("%r stays claimed by the query that has ended: %s", source_of(self._options).name, error)


def end_claims(claims: Iterable[Claim]) -> None:
    """End the claims of a query that waits for messages, where Spark has ended it; never raises."""
    if _is_ended.is_set():
        for each in claims:
            each.end()


def watch_for_end() -> None:
    """Note the signal by which Spark ends a query, if this is a worker process of Spark; idempotent.

    Spark sends SIGTERM to the process that runs the source, and closes the connection to it, which ends it in order.
    Where the program of Spark was killed there is no signal.
    """
    if is_worker() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)


def _end(*_: object) -> None:
    _is_ended.set()
    signal.alarm(_END_SECONDS)
