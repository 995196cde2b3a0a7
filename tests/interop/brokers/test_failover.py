"""The failover contract against ActiveMQ Artemis: cut after every so many frames, and killed in the middle of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from sdk import AcknowledgeMode, ConnectionFactory, TransactionInDoubtException
from tests.faults.proxy import Cut, Direction, Proxy
from tests.faults.scenarios import PROMISED, Seen, check, play
from tests.interop.brokers.brokers import Broker, start_artemis, start_artemis_pair
from tests.interop.conftest import installed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

COUNT = 6
#: Between two cuts, in frames.
STRIDE = 3
#: How long a scenario waits for a message; where a commit in doubt was carried out, it waits for one that is gone.
IN_DOUBT_SECONDS = 30.0
MODES = [mode for mode in AcknowledgeMode if mode is not AcknowledgeMode.NO_ACK]


@pytest.fixture(scope="module")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """A broker, in a list in which a test puts the one that takes its place."""
    running = [installed(lambda: start_artemis(tmp_path_factory.mktemp("artemis")))]
    yield running
    running[0].process.stop()


def url_of(proxy: Proxy, options: str = "") -> str:
    return f"amqp://ada:secret@127.0.0.1:{proxy.port}?allow_plain_without_tls=true{options}"


def proxied(broker: Broker) -> Proxy:
    port = urlsplit(broker.url).port
    assert port is not None
    return Proxy(port)


def left_in(proxy: Proxy, name: str) -> list[str]:
    with ConnectionFactory(url_of(proxy)).create_connection() as connection, connection.create_session() as session:
        return [message.body for message in session.create_browser(session.create_queue(name))]


def check_artemis(mode: AcknowledgeMode, seen: Seen, cuts: int, left: list[str]) -> None:
    """The contract, where a broker cannot say what became of a commit."""
    if any(isinstance(error, TransactionInDoubtException) for error in seen.raised):
        # The application did it again, and may have done it twice; it was told so.
        assert {body for body, _ in seen.received} | {*left, *seen.too_many} == {
            f"message {number}" for number in range(COUNT)
        }
        assert all(type(error) in (*PROMISED[mode], TransactionInDoubtException) for error in seen.raised)
        return
    check(mode, seen, COUNT, cuts)
    if mode is not AcknowledgeMode.DUPS_OK:
        assert left == []


@pytest.mark.parametrize("direction", Direction, ids=lambda each: each.name)
@pytest.mark.parametrize("mode", MODES, ids=lambda each: each.name)
def test_the_contract_holds_wherever_the_connection_to_artemis_is_cut(
    artemis: list[Broker], mode: AcknowledgeMode, direction: Direction
) -> None:
    with proxied(artemis[0]) as proxy:
        name = f"{mode.name}-{direction.name}"
        check(mode, play(mode, url_of(proxy), f"{name}-whole", COUNT), COUNT, cuts=0)
        for after in range(0, proxy.frames[direction], STRIDE):
            cuts = proxy.cuts
            proxy.plan(Cut(direction, frames=after))
            seen = play(mode, url_of(proxy), f"{name}-{after}", COUNT, IN_DOUBT_SECONDS)
            proxy.plan(None)
            try:
                check_artemis(mode, seen, proxy.cuts - cuts, left_in(proxy, f"{name}-{after}"))
            except AssertionError as error:
                raise AssertionError(f"cut after {after} frames {direction.value}: {seen}") from error


def test_a_message_that_is_sent_again_to_artemis_is_not_a_second_one(artemis: list[Broker]) -> None:
    with (
        proxied(artemis[0]) as proxy,
        ConnectionFactory(url_of(proxy)).create_connection() as connection,
        connection.create_session() as session,
    ):
        producer = session.create_producer(session.create_queue("again"))
        producer.send("first")
        proxy.hold(Direction.TO_CLIENT)  # its answer goes nowhere
        thread = threading.Thread(target=producer.send, args=("second",))
        thread.start()
        time.sleep(0.5)
        proxy.cut()
        proxy.hold()
        thread.join(20)
        producer.send("third")
        browser = session.create_browser(session.create_queue("again"))
        assert [(message.body, dict(message.properties)) for message in browser] == [
            ("first", {}),
            ("second", {}),
            ("third", {}),
        ]


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED], ids=lambda each: each.name)
def test_the_contract_holds_over_a_kill_of_artemis(artemis: list[Broker], mode: AcknowledgeMode) -> None:
    broker = artemis[0]
    with proxied(broker) as proxy:
        killed = threading.Event()

        def kill() -> None:
            time.sleep(0.3)
            broker.process.stop()
            killed.set()
            artemis[0] = Broker(broker.name, broker.url, "ada", "secret", broker.cannot, broker.process.started_again())

        killer = threading.Thread(target=kill)
        killer.start()
        count = 400
        options = "&max_reconnect_delay_seconds=0.2&retries=none"
        seen = play(mode, url_of(proxy, options), f"killed {mode.name}", count, wait=60)
        killer.join(120)
        assert killed.is_set()
        if any(isinstance(error, TransactionInDoubtException) for error in seen.raised):
            assert not {body for body, _ in seen.received} - {f"message {number}" for number in range(count)}
        else:
            check(mode, seen, count, cuts=2)


def test_the_backup_of_a_replicated_pair_takes_the_place_of_a_primary_that_is_killed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """All modes at once; what was confirmed by the primary is at the backup."""
    primary, backup = installed(lambda: start_artemis_pair(tmp_path_factory.mktemp("pair")))
    count = 300
    results: dict[AcknowledgeMode, Seen | BaseException] = {}
    addresses = ",".join(f"amqp://ada:secret@127.0.0.1:{urlsplit(each.url).port}" for each in (primary, backup))
    url = f"failover:({addresses})?allow_plain_without_tls=true&max_reconnect_delay_seconds=0.2"

    def run(mode: AcknowledgeMode) -> None:
        try:
            results[mode] = play(mode, url, f"pair {mode.name}", count, wait=60)
        except BaseException as error:
            results[mode] = error

    try:
        threads = [threading.Thread(target=run, args=(mode,)) for mode in MODES]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        primary.process.stop()
        for thread in threads:
            thread.join(200)
        assert set(results) == set(MODES)
        for mode, seen in results.items():
            assert isinstance(seen, Seen), f"{mode.name}: {seen!r}"
            assert seen.told, f"{mode.name} was over before the primary was killed"
            if any(isinstance(error, TransactionInDoubtException) for error in seen.raised):
                assert {body for body, _ in seen.received} <= {f"message {number}" for number in range(count)}
            else:
                check(mode, seen, count, cuts=len(seen.told))
    finally:
        for broker in (primary, backup):
            broker.process.stop()
