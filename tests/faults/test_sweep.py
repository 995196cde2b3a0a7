"""A connection that is cut after every frame, in both directions: the contract holds, in every mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sdk import AcknowledgeMode, Connection, ConnectionFactory, QueueStatistics
from tests.faults.proxy import Cut, Direction, Proxy
from tests.faults.scenarios import check, play, wait_for
from tests.server_process import ServerProcess

pytestmark = pytest.mark.crash

COUNT = 4
MODES = [mode for mode in AcknowledgeMode if mode is not AcknowledgeMode.NO_ACK]


@pytest.fixture(scope="module")
def record(server: ServerProcess) -> Iterator[Connection]:
    """A connection around the proxy, to ask the engine what it has."""
    with ConnectionFactory(server.url).create_connection() as connection:
        yield connection


def state_of(record: Connection, queue: str) -> QueueStatistics:
    return next(each for each in record.statistics().queues if each.name == queue)


def check_record(record: Connection, queue: str, mode: AcknowledgeMode) -> None:
    """Every message was stored once, and is gone."""
    assert state_of(record, queue).next_position == COUNT + 1, "stored more or less often than sent"
    if mode is AcknowledgeMode.DUPS_OK:
        return  # its last batch may be lost while it closes
    assert wait_for(lambda: state_of(record, queue).messages == 0), f"left: {state_of(record, queue)}"


@pytest.mark.parametrize("fault", ["cut", "half open"])
@pytest.mark.parametrize("direction", Direction, ids=lambda each: each.name)
@pytest.mark.parametrize("mode", MODES, ids=lambda each: each.name)
def test_the_contract_holds_wherever_the_connection_is_cut(
    mode: AcknowledgeMode, direction: Direction, fault: str, proxy: Proxy, record: Connection
) -> None:
    name = f"{mode.name} {direction.name} {fault}"
    sent: list[int] = []
    check(mode, play(mode, proxy.url, name, COUNT, when_sent=lambda: sent.append(proxy.frames[direction])), COUNT, 0)
    frames = proxy.frames[direction]
    assert frames > 2 * COUNT
    # Until all is sent, the same frames go to and fro in each mode without transactions.
    first = 0 if mode in (AcknowledgeMode.AUTO, AcknowledgeMode.TRANSACTED) else sent[0] - 1
    cut_after = 0
    places = range(first, frames, 1 if fault == "cut" else 2)
    for after in places:
        # Between two frames, and in the middle of every second one.
        for into_next in (0, 5) if fault == "cut" and after % 2 else (0,):
            queue = f"{name} {after} {into_next}"
            cuts = proxy.cuts
            proxy.plan(Cut(direction, frames=after, into_next=into_next, half_open=fault == "half open"))
            seen = play(mode, proxy.url, queue, COUNT)
            proxy.plan(None)
            try:
                check(mode, seen, COUNT, proxy.cuts - cuts)
                check_record(record, queue, mode)
                # The figures of a thousand queues, asked for again and again, would take most of the time.
                record.request("delete", {"destination": queue, "force": True})
            except AssertionError as error:
                raise AssertionError(
                    f"cut after {after} frames and {into_next} bytes {direction.value}: {seen}"
                ) from error
            cut_after += proxy.cuts - cuts
    assert cut_after >= len(places) * 3 // 4, "the cuts came too late"
