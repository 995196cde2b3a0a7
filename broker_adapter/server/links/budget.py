"""What one connection holds in the server's memory, and what follows from it.  Pure."""

from __future__ import annotations

import attrs


@attrs.define
class Budget:
    """The bytes of one connection, by what has to happen before they are free again.

    What only the client can end (unfinished messages, open transactions) is never more than the budget: what would
    exceed it is refused.  What ends by itself (messages that the engine has not answered yet, requests, output that the
    socket does not take) is added to that, and while the sum is above the budget nothing is read from the client.  So a
    connection that is not read from always has something that ends by itself, and goes on after that.

    Answers, messages and events that wait for the client's credit or for its session window are not among that: what
    they wait for has to be read.  While answers are above the budget, requests are refused; messages are not asked of
    the engine, and of events it hands out a window of bytes.

    Attributes:
        most_bytes: the budget.
        unfinished: bytes of messages of which only a part has come.
        transactions: of open transactions.
        unanswered: of messages and commits that the engine has not answered yet.
        requests: of requests that are being carried out.
        output: of messages and answers, also those to its own messages, that wait for the socket.
        answers: of answers that were not sent yet, whatever they wait for.
        events: of events of regions that were not sent yet, whatever they wait for.
    """

    most_bytes: int
    unfinished: int = 0
    transactions: int = 0
    unanswered: int = 0
    requests: int = 0
    output: int = 0
    answers: int = 0
    events: int = 0

    @property
    def excess(self) -> int:
        """Bytes of what only the client can end that are too many; 0 or less: none are."""
        return self.unfinished + self.transactions - self.most_bytes

    def allows_requests(self, uncounted: int = 0) -> bool:
        """Return whether the client has taken enough answers to have another request carried out.

        Args:
            uncounted: bytes of answers that ``answers`` does not have yet.
        """
        return self.answers + uncounted <= self.most_bytes

    @property
    def allows_reading(self) -> bool:
        """Whether more may be read from the client."""
        kept = self.unfinished + self.transactions + self.unanswered + self.requests + self.output
        return kept <= self.most_bytes
