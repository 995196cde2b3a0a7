"""Random histories of a sender with several batches under way: each message arrives once and in order."""

from __future__ import annotations

import random
from collections import deque
from contextlib import closing
from typing import Any

import pytest

from broker_adapter.engine.records.gateway_records import GatewayRecord
from broker_adapter.errors import (
    ConnectionLostException,
    JMSException,
    MessageFormatException,
    ResourceAllocationException,
)
from broker_adapter.gateways.sender import Sender
from tests.broker_adapter.engine.sites import Site, in_queue

MOST = 3000  #: bytes of a message at the other site


class Line:
    """Carries out what a sender does, between two engines, a step at a time."""

    def __init__(self, near: Site, far: Site) -> None:
        self._near = near
        self._far = far
        self._rules = Sender(5)
        self._requests: deque[dict[str, Any]] = deque()  # that are under way
        self._answers: deque[Any] = deque()  # the same
        self.now = 0.0
        self.most = 0  #: batches that were under way at once

    def send(self) -> None:
        """Read and send a batch, if one is due."""
        with self._near.broker.reading() as reader:
            record: GatewayRecord = reader.gateway("g")
        counted = self._near.gateways("g")
        rules = self._rules
        if rules.seconds_until_due(record, counted["waiting"], counted["waiting_bytes"], self.now) != 0:
            return
        found = self._near.ask("read_gateway", name="g", remote_site=2, **rules.limits(record))
        assert found["through"]
        batch = rules.batch_of(found, 1, self.now)
        self._requests.append(batch)
        self.most = max(self.most, len(rules.under_way))

    def carry_out(self) -> None:
        """Have the other site carry out a request."""
        if not self._requests:
            return
        batch = self._requests.popleft()
        if not batch["positions"]:
            self._answers.append({})
            return
        try:
            self._answers.append(self._far.ask("apply_batch", **batch))
        except JMSException as error:
            self._answers.append(error)

    def end(self) -> None:
        """Take an answer."""
        if not self._answers:
            return
        answer = self._answers.popleft()
        if isinstance(answer, MessageFormatException | ResourceAllocationException):
            try:
                ended = self._rules.not_taken(answer)
            except ResourceAllocationException as error:
                self.cut(error)
                return
        elif isinstance(answer, JMSException):
            self.cut(answer)
            return
        else:
            ended = self._rules.answered(answer)
        if ended is not None:
            self._rules.works(self.now)
            self._near.ask("end_gateway_batch", name="g", **ended)

    def cut(self, error: JMSException | None = None) -> None:
        """Lose the connection."""
        self._requests.clear()
        self._answers.clear()
        self._rules.failed(error or ConnectionLostException("cut"), self.now)


def emptied(site: Site) -> list[str]:
    """Take what its queue has, which makes room."""
    bodies = in_queue(site)
    site.ask("purge", destination="q")
    return bodies


@pytest.mark.parametrize("seed", range(6))
def test_each_message_arrives_once_and_in_order_whatever_becomes_of_the_batches(seed: int) -> None:
    chance = random.Random(seed)
    near = Site(1)
    far = Site(
        2, max_message_bytes=MOST, max_transaction_messages=5, max_queue_messages=60, max_gateway_batch_bytes=1 << 20
    )
    with closing(near.broker), closing(far.broker):
        far.ask("bounds", destination="q", make=True)
        near.gateway("g", "queue:q", selector="wanted = TRUE", batch_messages=7, batch_bytes=1 << 20, batch_ms=500)
        line, sent, refused = Line(near, far), [], []
        taken: list[str] = []
        for number in range(700):
            line.now += chance.choice((0, 0, 0.1, 5))
            what = chance.choice(("traffic", "send", "send", "send", "carry out", "carry out", "end", "end", "rare"))
            if what == "traffic":
                for place in range(chance.choice((1, 3, 9))):
                    body = f"{number} {place}"
                    size = 2 * MOST if number > 300 and chance.random() < 0.06 else 10
                    wanted = chance.random() < 0.9
                    near.send("q", body.ljust(size, "."), properties={"wanted": wanted})
                    if wanted:
                        (sent if size < MOST else refused).append(body)
            elif what == "send":
                line.send()
            elif what == "carry out":
                line.carry_out()
            elif what == "end":
                line.end()
            elif chance.random() < 0.2:
                line.cut()
            else:
                taken += emptied(far)
        for _ in range(5000):
            if not near.gateways("g")["waiting"]:
                break
            line.now += 1
            line.send()
            line.carry_out()
            line.end()
            taken += emptied(far)
        assert [body.rstrip(".") for body in taken + emptied(far)] == sent
        assert [body.rstrip(".") for body in in_queue(near, "$gateway/g/refused")] == refused
        counted = near.gateways("g")
        assert (counted["waiting"], counted["distributed"], counted["refused"]) == (0, len(sent), len(refused))
        assert line.most > 2, "before anything was refused"
