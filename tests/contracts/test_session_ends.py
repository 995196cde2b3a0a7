"""A session, link or connection that ends while another thread still works with it, with each transport."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from broker_adapter.destination import queue
from broker_adapter.errors import IllegalStateException, JMSException, TransactionRolledBackException
from broker_adapter.transport import SenderSpec
from tests.contracts.calls import Answers, Caller, blocked_sends, texts
from tests.contracts.conftest import MakeEngine
from tests.contracts.transports import WAIT, Client, Engine, eventually, message

Q = queue("q")


def attach_sender(client: Client) -> int:
    return client.sender(Q, session=2)


def attach_receiver(client: Client) -> int:
    return client.receiver(Q, 5, session=2).link


@pytest.mark.parametrize("attach", [attach_sender, attach_receiver])
def test_a_link_is_detached_while_its_session_ends(client: Client, attach: Callable[[Client], int]) -> None:
    """Whichever comes first, both are done: a detach without an answer would wait for its time-out, and raise."""
    for _ in range(30):
        links = [attach(client) for _ in range(3)]
        both = threading.Barrier(len(links) + 1)

        def at_once(call: Callable[..., Any], argument: int, both: threading.Barrier = both) -> None:
            both.wait(WAIT)
            call(argument, 20)

        callers = [Caller(lambda link=link: at_once(client.transport.detach, link)) for link in links]  # type: ignore[misc]
        callers.append(Caller(lambda: at_once(client.transport.end_session, 2)))
        assert [each.ended().error for each in callers] == [None] * len(callers)
    assert client.events == []


def test_a_link_is_detached_twice_at_once(client: Client) -> None:
    for _ in range(30):
        link = client.receiver(Q, 5, session=2).link
        callers = [Caller(lambda link=link: client.transport.detach(link, 20)) for _ in range(3)]  # type: ignore[misc]
        assert [each.ended().error for each in callers] == [None] * 3


def test_a_session_is_ended_twice_at_once(client: Client) -> None:
    for _ in range(30):
        client.send("q", "x")
        client.receiver(Q, 1, session=2).wait_for(1)
        callers = [Caller(lambda: client.transport.end_session(2, 20)) for _ in range(3)]
        assert [each.ended().error for each in callers] == [None] * 3
        client.settle(client.receiver(Q, 1, session=3).wait_for(1))
        client.transport.end_session(3, WAIT)


def test_a_drain_ends_with_its_session(client: Client) -> None:
    for _ in range(20):
        link = client.receiver(Q, 5, session=2).link
        drain = Caller(lambda link=link: client.transport.drain(link, 20))  # type: ignore[misc]
        client.transport.end_session(2, 20)
        error = drain.ended().error
        assert error is None or isinstance(error, IllegalStateException)


def test_what_a_link_still_waits_for_is_told_when_its_session_ends(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=1&blocked_send_timeout_seconds=2").open()
    watcher = client
    client.send("q", "full")
    link = client.transport.attach(SenderSpec(2, Q), None, WAIT)
    answers = Answers()
    for body in texts(3):
        client.transport.send(link, message(Q, body), answers, WAIT)
    eventually(lambda: blocked_sends(watcher, "q"))
    client.transport.end_session(2, 20)
    # Those that the broker has already may be taken all the same; each is answered once.
    client.settle(client.receiver(Q, 1).wait_for(1))
    assert len(answers.wait_for(3)) == 3


def test_a_commit_says_what_became_of_it_whenever_its_session_ends(engine: Engine) -> None:
    client = engine.open()
    committed = []
    for number in range(40):
        session, name = 10 + number, queue(f"q{number}")
        link = client.sender(name, session)
        sends = [(link, message(name, body)) for body in texts(3)]
        both = threading.Barrier(2)

        def commit(session: int = session, sends: list[Any] = sends, both: threading.Barrier = both) -> None:
            both.wait(WAIT)
            client.transport.commit(session, 1, sends, [], WAIT)

        caller = Caller(commit)
        both.wait(WAIT)
        time.sleep(number * 0.0001)  # so that it ends at one step of the commit, then at another
        client.transport.end_session(session, 20)
        error: JMSException | None = caller.ended().error
        assert error is None or isinstance(error, TransactionRolledBackException | IllegalStateException), error
        assert client.bodies(name.name) == ([] if error is not None else texts(3))
        committed.append(error is None)
    assert len(committed) == 40
