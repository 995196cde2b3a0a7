"""``close()`` where the server says nothing any more, and where two threads close at once."""

from __future__ import annotations

import threading
import time
from uuid import uuid4

import pytest

from sdk import AcknowledgeMode
from sdk.lifecycle import State
from tests.faults.conftest import Connect
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import WAIT

pytestmark = pytest.mark.crash

SESSIONS = 60
LIMIT = 5.0  #: seconds, option close_timeout_seconds


def test_closing_in_a_black_hole_takes_one_time_out_for_all_sessions(proxy: Proxy, connect: Connect) -> None:
    connection = connect(f"&close_timeout_seconds={LIMIT}").connection
    modes = [mode for mode in AcknowledgeMode if mode is not AcknowledgeMode.NO_ACK]
    for number in range(SESSIONS):
        session = connection.create_session(modes[number % len(modes)])
        queue = session.create_queue(f"queue {uuid4()}")
        session.create_producer(queue).send("x")
        if session.transacted:
            session.commit()
        assert session.create_consumer(queue).receive(timeout=WAIT) is not None
        next(iter(session.create_browser(queue)), None)
    proxy.hold(Direction.TO_SERVER, Direction.TO_CLIENT)
    before = time.monotonic()
    connection.close()
    assert time.monotonic() - before < 3 * LIMIT


def test_a_second_close_waits_for_the_first(proxy: Proxy, connect: Connect) -> None:
    connection = connect(f"&close_timeout_seconds={LIMIT}").connection
    session = connection.create_session()
    session.create_consumer(session.create_queue(f"queue {uuid4()}"))
    proxy.hold(Direction.TO_SERVER, Direction.TO_CLIENT)
    first = threading.Thread(target=connection.close)
    first.start()
    while connection._lifecycle.state is not State.CLOSING:
        time.sleep(0.001)
    connection.close()
    assert connection._lifecycle.state is State.CLOSED
    first.join(WAIT)
    connection.close()
