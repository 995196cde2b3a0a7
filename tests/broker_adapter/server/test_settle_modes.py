"""Links whose receiver settles once the sender has (rcv-settle-mode ``second``), by frames made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.broker_adapter.amqp import frames
from tests.broker_adapter.engine.driving import depth
from tests.broker_adapter.server.protocol_client import encoded, put, waiting
from tests.broker_adapter.server.raw_client import RawClient
from tests.broker_adapter.server.served import Served

SECOND = (None, 1)


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()


@pytest.fixture
def client(served: Served) -> Iterator[RawClient]:
    with RawClient(served.port, envelopes=False) as client:
        client.send(frames.begin(0))
        yield client


def attached(client: RawClient) -> list[object]:
    client.until(lambda: client.count(frames.ATTACH) == 1)
    return next(client.fields(frames.ATTACH))


@pytest.mark.parametrize("receives", [True, False], ids=["consumer", "producer"])
@pytest.mark.parametrize("modes", [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)])
def test_the_answer_to_an_attach_has_the_settle_modes_that_were_asked_for(
    client: RawClient, modes: tuple[int, int], receives: bool
) -> None:
    client.send(frames.attach(0, 0, "l", receives=receives, modes=modes))

    answer = attached(client)
    # proton writes no mode that is the default of the specification: mixed, and first.
    assert (2 if answer[3] is None else answer[3], answer[4] or 0) == modes


def test_the_server_settles_a_delivery_when_its_outcome_is_stored(served: Served, client: RawClient) -> None:
    put(served.broker, "q", encoded("x"))
    client.send(frames.attach(0, 0, "l", receives=True, modes=SECOND), frames.flow(0, 0, 1))
    client.until(lambda: len(client.payloads) == 1)
    with served.broker.reading():  # the engine decides nothing meanwhile
        client.send(frames.disposition(0, True, 0, settled=False), frames.flow(0, 0, 1))
        client.send(frames.attach(0, 1, "behind it", "$holdfast", receives=True))
        client.until(lambda: client.count(frames.ATTACH) == 2)
        assert client.count(frames.DISPOSITION) == 0

    client.until(lambda: settled(client) == [0])
    assert depth(served.broker, "q") == 0


@pytest.mark.parametrize("state", [0x25, 0x26, 0x27])
def test_every_outcome_is_settled_by_the_server_as_well(served: Served, client: RawClient, state: int) -> None:
    put(served.broker, "q", encoded("x"), encoded("y"))
    client.send(frames.attach(0, 0, "l", receives=True, modes=SECOND), frames.flow(0, 0, 2))
    client.until(lambda: len(client.payloads) == 2)

    client.send(frames.disposition(0, True, 0, 1, state, settled=False))

    client.until(lambda: settled(client) == [0, 1])


def test_what_a_client_has_settled_by_itself_is_not_settled_again(served: Served, client: RawClient) -> None:
    put(served.broker, "q", encoded("x"))
    client.send(frames.attach(0, 0, "l", receives=True, modes=SECOND), frames.flow(0, 0, 1))
    client.until(lambda: len(client.payloads) == 1)

    client.send(frames.disposition(0, True, 0), frames.detach(0, 0))

    client.until(lambda: client.count(frames.DETACH) == 1)
    assert client.count(frames.DISPOSITION) == 0
    assert depth(served.broker, "q") == 0


def test_a_producer_that_asks_for_it_settles_after_the_servers_disposition(served: Served, client: RawClient) -> None:
    client.send(frames.attach(0, 0, "l", modes=SECOND))
    client.until(lambda: client.count(frames.FLOW) == 1)

    client.send(frames.transfer(0, 0, 0, b"a", encoded("x")))
    client.until(lambda: client.count(frames.DISPOSITION) == 1)

    answer: list[Any] = next(client.fields(frames.DISPOSITION))
    assert answer[0] is True  # of the receiver
    assert answer[3] is not True
    assert answer[4].descriptor == 0x24
    assert waiting(served.broker, "q") == ["x"]
    client.send(frames.disposition(0, False, 0), frames.detach(0, 0))
    client.until(lambda: client.count(frames.DETACH) == 1)
    assert client.count(frames.DISPOSITION) == 1


def test_a_producer_that_never_settles_loses_its_link_at_the_limit(serve: Callable[..., Served]) -> None:
    # 1,000 are allowed in any case: see ServerProtocol.
    served = serve(max_connection_bytes=1024 * 1024)
    with RawClient(served.port) as client:
        client.send(frames.begin(0), frames.attach(0, 0, "l", modes=SECOND))
        client.until(lambda: client.count(frames.FLOW) == 1)
        sent = 0
        while not client.count(frames.DETACH):
            client.send(frames.transfer(0, 0, sent, b"%d" % sent, encoded("x")))
            sent += 1
            client.until(lambda: client.count(frames.DETACH) > 0 or answered(client) == sent)  # noqa: B023 - in turn

        assert sent == 1001
        error: Any = next(client.fields(frames.DETACH))[2]
        assert error.value[0] == "amqp:resource-limit-exceeded"
        assert "1000 messages" in error.value[1]
    assert depth(served.broker, "q") == sent


def settled(client: RawClient) -> list[int]:
    """The deliveries of the server's own that it has settled."""
    fields: list[Any] = list(client.fields(frames.DISPOSITION))
    return [number for each in fields if not each[0] and each[3] for number in range(each[1], (each[2] or each[1]) + 1)]


def answered(client: RawClient) -> int:
    """How many messages the server has given an outcome."""
    fields: list[Any] = list(client.fields(frames.DISPOSITION))
    return sum(1 + (each[2] or each[1]) - each[1] for each in fields if each[0])
