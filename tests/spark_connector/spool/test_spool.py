"""A spool that is filled from a broker: what is acknowledged when, and what comes twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
from proton import Message, symbol

from broker_adapter import EngineSettings, StoreLockedException
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.messaging import incoming
from broker_adapter.envelope import AMQP_FORMAT
from sdk import ConnectionFactory, ConnectionLostException, Destination, JMSException
from sdk.range_reader import RangeMessage, RangeReader
from spark_connector.options import SourceOptions
from spark_connector.spool import spool as spools
from spark_connector.spool.spool import SOURCE_FILE, Spool, settings_of, source_in_words
from tests.contracts.transports import WAIT, eventually
from tests.spark_connector.foreign import Foreign


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Foreign]:
    foreign = Foreign(tmp_path)
    yield foreign
    foreign.stop()


def spooled(spool: Spool, *, settle: bool = False) -> list[RangeMessage]:
    """What a spool has; ``settle``: and drop it."""
    with ConnectionFactory(spool.url).create_connection() as connection:
        reader = RangeReader(connection, Destination(spool.queue))
        bounds = reader.bounds()
        found = [message for part in reader.read(bounds.first, bounds.next - 1) for message in part]
        if settle and found:
            reader.settle_through(found[-1].position)
        return found


def bodies(spool: Spool, *, settle: bool = False) -> list[str]:
    return [message.envelope().body for message in spooled(spool, settle=settle)]


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def test_messages_are_acknowledged_when_they_are_in_the_spool(foreign: Foreign) -> None:
    foreign.fill(0, 2500)
    with closing(Spool(foreign.options)) as spool:
        eventually(lambda: foreign.count() == 0)
        assert bodies(spool) == numbers(2500)
        assert spool.progress.moved == 2500
        assert spool.is_confirmed()
    with closing(Spool(foreign.options)) as spool:
        assert bodies(spool) == numbers(2500)


def test_a_message_that_comes_twice_is_in_the_spool_once_also_after_it_was_processed(foreign: Foreign) -> None:
    twice = [Message(id=f"m{number}", body=str(number)) for number in range(10)]
    foreign.send(twice)
    with closing(Spool(foreign.options)) as spool:
        eventually(lambda: foreign.count() == 0)
        assert bodies(spool, settle=True) == numbers(10)
    foreign.send([*twice, Message(id="m10", body="10")])
    with closing(Spool(foreign.options)) as spool:
        eventually(lambda: foreign.count() == 0)
        assert bodies(spool) == ["10"]


def test_a_message_of_our_own_server_that_cannot_be_decoded_and_comes_twice_is_in_the_spool_once(
    foreign: Foreign, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = Message(id="m1").encode() + b"\x00\x53\x77\xa1\x05x"  # a text that is cut short
    client = foreign.broker.call(c.Connect(None), WAIT)
    with closing(Spool(foreign.with_options(url=foreign.url))) as spool:
        for _ in range(2):
            message = incoming(AMQP_FORMAT, damaged, 4, True, None, None, None, None)
            foreign.broker.call(c.Enqueue(client, queue("in"), [message]), WAIT)
            eventually(lambda: foreign.count() == 0)
        assert [message.payload for message in spooled(spool)] == [damaged]
    assert [each for each in caplog.records if "no message id" in each.getMessage()] == []


def test_as_many_messages_are_recognised_as_the_option_says(foreign: Foreign) -> None:
    old, new = Message(id="old", body="old"), Message(id="new", body="new")
    with closing(Spool(foreign.with_options(spool_ids=1000))) as spool:
        foreign.send([old, *(Message(id=f"m{number}", body="x") for number in range(999)), new])
        eventually(lambda: foreign.count() == 0)
        assert len(spooled(spool, settle=True)) == 1001
        foreign.send([new, old])
        eventually(lambda: foreign.count() == 0)
        assert bodies(spool) == ["old"]


def test_messages_without_an_id_are_all_kept_and_the_log_says_what_that_means(
    foreign: Foreign, caplog: pytest.LogCaptureFixture
) -> None:
    foreign.send([Message(body="same"), Message(body="same"), Message(body="same")])
    with closing(Spool(foreign.options)) as spool:
        eventually(lambda: foreign.count() == 0)
        assert bodies(spool) == ["same"] * 3
    told = [record.getMessage() for record in caplog.records if "no message id" in record.getMessage()]
    assert len(told) == 1
    assert "one that the broker sends twice, as it does after a lost connection or a kill, is read twice" in told[0]


def test_a_message_of_another_client_is_in_the_spool_as_it_came(foreign: Foreign) -> None:
    foreign.send([Message(id="a", body="x", properties={"n": 1}, annotations={symbol("x-opt-mine"): "kept"})])
    with closing(Spool(foreign.options)) as spool:
        eventually(lambda: foreign.count() == 0)
        kept = Message()
        kept.decode(spooled(spool)[0].payload)
        assert (kept.id, kept.body, kept.properties) == ("a", "x", {"n": 1})
        assert kept.annotations[symbol("x-opt-mine")] == "kept"


def test_messages_in_our_own_form_are_read_as_well(foreign: Foreign) -> None:
    foreign.fill(0, 10)
    with closing(Spool(foreign.with_options(url=foreign.url))) as spool:
        eventually(lambda: foreign.count() == 0)
        assert bodies(spool) == numbers(10)


def test_a_selector_chooses_at_the_broker(foreign: Foreign) -> None:
    foreign.send([Message(id=str(each), body=str(each), properties={"n": each}) for each in range(4)])
    with closing(Spool(foreign.with_options(selector="n > 1"))) as spool:
        eventually(lambda: foreign.count() == 2)
        assert bodies(spool) == ["2", "3"]


def test_a_durable_subscription_is_read_as_a_queue_is(foreign: Foreign) -> None:
    options = foreign.with_options(queue=None, topic="news", subscription="spark")
    with closing(Spool(options)) as spool, ConnectionFactory(foreign.url).create_connection() as connection:
        eventually(lambda: spool.progress.waited_seconds > 0)
        with connection.create_session() as session:
            session.create_producer(session.create_topic("news")).send("hello")
        eventually(lambda: bodies(spool) == ["hello"])
        assert spool.queue == "news"


@pytest.mark.parametrize("limit", [{"spool_max_messages": 50}, {"spool_max_bytes": 5000}])
def test_a_full_spool_stops_the_reading_until_something_is_processed(foreign: Foreign, limit: dict[str, Any]) -> None:
    foreign.fill(0, 300)
    with closing(Spool(foreign.with_options(**limit))) as spool:
        found: list[str] = []
        full = 0
        while len(found) < 300:
            rest = 300 - len(found)
            eventually(lambda rest=rest: spool._is_full() or len(bodies(spool)) == rest)
            full += spool._is_full()
            # What the broker still has is in its queue, or held here by the prefetch of 20 messages.
            assert len(bodies(spool)) + foreign.count() <= 300 - len(found)
            assert spool.progress.error is None
            found += bodies(spool, settle=True)
        assert found == numbers(300)
        assert full >= 2


def test_a_full_disk_is_an_error_that_says_so_and_nothing_is_acknowledged(foreign: Foreign) -> None:
    Spool(foreign.options).close()
    foreign.fill(0, 10)
    no_room = attrs.evolve(settings_of(foreign.options), min_free_disk_bytes=1 << 60)
    with closing(Spool(foreign.options, settings=no_room)) as spool:
        eventually(lambda: spool.progress.error is not None)
        failure = spool.progress.failure(time.monotonic(), 600)
        assert failure is not None
        assert "min_free_disk_bytes" in str(failure)
        assert "Nothing of it was acknowledged" in str(failure)
        assert bodies(spool) == []
        assert foreign.count() == 10
    with closing(Spool(foreign.options)) as spool:
        eventually(lambda: foreign.count() == 0)
        assert bodies(spool) == numbers(10)


def test_a_message_above_the_limit_is_an_error_that_names_it_and_the_others_go_on(foreign: Foreign) -> None:
    foreign.send([Message(id="a", body="x" * 5000), Message(id="b", body="small")])
    small = attrs.evolve(settings_of(foreign.options), max_message_bytes=1000)
    with closing(Spool(foreign.options, settings=small)) as spool:
        eventually(lambda: spool.progress.error is not None and bodies(spool) == ["small"])
        assert "larger than the limit of 1000 bytes" in str(spool.progress.error)
        assert "take it from the queue by another client" in str(spool.progress.error)
        assert foreign.count() == 1


def test_a_spool_is_for_one_query(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spools, "LOCK_SECONDS", 0.3)
    with (
        closing(Spool(foreign.options)),
        pytest.raises(StoreLockedException, match=r"is in use by another query \(.*give each query a directory"),
    ):
        Spool(foreign.options)
    Spool(foreign.options).close()


def test_a_spool_is_for_one_queue(foreign: Foreign) -> None:
    Spool(foreign.options).close()
    with pytest.raises(ValueError, match="has messages of the queue 'in', and this query reads the queue 'other'"):
        Spool(foreign.with_options(queue="other"))


def test_a_source_in_words_is_told_from_every_other_one() -> None:
    options = SourceOptions(queue="a")
    topic = SourceOptions(topic="a", subscription="s")
    sources = [
        options,
        attrs.evolve(options, queue="b"),
        topic,
        attrs.evolve(topic, subscription="t"),
        attrs.evolve(topic, client_id="c"),
        attrs.evolve(topic, subscription="s' of the client 'c"),
    ]
    assert source_in_words(options) == "the queue 'a'"
    assert source_in_words(sources[4]) == "the subscription 's' of the client 'c' on the topic 'a'"
    assert len({source_in_words(each) for each in sources}) == len(sources)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"queue": None, "topic": "in", "subscription": "s"}),
        ({"queue": None, "topic": "in", "subscription": "s"}, {"queue": None, "topic": "in", "subscription": "t"}),
        ({"queue": "DLQ"}, {}),
    ],
)
def test_a_spool_is_for_one_source(foreign: Foreign, first: dict[str, Any], second: dict[str, Any]) -> None:
    for _ in range(2):
        Spool(foreign.with_options(**first)).close()
    with pytest.raises(ValueError, match="give each query a directory of its own") as refusal:
        Spool(foreign.with_options(**second))
    assert source_in_words(foreign.with_options(**first)) in str(refusal.value)


def test_a_spool_whose_making_was_interrupted_gets_its_note(foreign: Foreign) -> None:
    Spool(foreign.options).close()
    noted = Path(str(foreign.options.spool), SOURCE_FILE)
    noted.unlink()
    Spool(foreign.options).close()
    assert noted.read_text() == "the queue 'in'\n"
    assert not list(noted.parent.glob("*.part"))


def test_a_directory_that_cannot_be_made_is_named(foreign: Foreign, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JMSException, match="file/spool' cannot be made"):
        Spool(foreign.with_options(spool=str(tmp_path / "file" / "spool")))


def test_a_broker_that_starts_again_is_read_on(foreign: Foreign) -> None:
    foreign.fill(0, 100)
    with closing(Spool(foreign.options)) as spool:
        for round_ in range(1, 4):
            eventually(lambda: spool.progress.moved)
            foreign.stop()
            eventually(lambda: spool.progress.error is not None)
            foreign.start()
            foreign.fill(100 * round_, 100)
        eventually(lambda: foreign.count() == 0)
        assert sorted(bodies(spool), key=int) == numbers(400)


def test_a_worker_that_outlives_the_query_does_not_try_to_reach_its_spool_again(
    foreign: Foreign, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(foreign.options)
    with ConnectionFactory(spool.url).create_connection() as connection:
        reader = RangeReader(connection, Destination(spool.queue))
        assert reader.bounds().next == 1
        spool.close()
        with pytest.raises(ConnectionLostException):
            reader.bounds()
    assert [each.message for each in caplog.records if "failover" in each.name] == []


def test_an_error_that_nobody_thought_of_does_not_look_like_a_quiet_queue(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Spool, "_move", fail)
    with closing(Spool(foreign.options)) as spool:
        eventually(lambda: "a defect" in str(spool.progress.failure(time.monotonic(), 600)))


PROGRAM = textwrap.dedent(
    """
    import sys, time
    import attrs
    from spark_connector.options import parse_source
    from spark_connector.spool.spool import Spool

    spool = Spool(parse_source({"url": sys.argv[1], "queue": "in", "spool": sys.argv[2]}))
    print("open", flush=True)
    time.sleep(600)
    """
)


@pytest.mark.crash
def test_nothing_is_lost_and_nothing_doubled_where_the_process_is_killed_again_and_again(foreign: Foreign) -> None:
    assert foreign.options.spool is not None
    foreign.fill(0, 5000)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, foreign.options.url, foreign.options.spool],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        before = foreign.count()
        eventually(lambda before=before: foreign.count() < before or before == 0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    with closing(Spool(foreign.options)) as spool:
        eventually(lambda: foreign.count() == 0)
        assert sorted(bodies(spool), key=int) == numbers(5000)


def test_the_limits_of_the_options_are_those_of_the_engine(foreign: Foreign) -> None:
    settings = settings_of(foreign.with_options(spool_max_messages=7, spool_max_bytes=None, spool_ids=2000))
    assert (settings.max_queue_messages, settings.max_queue_bytes, settings.max_producers) == (7, None, 2000)
    assert settings.min_free_disk_bytes == EngineSettings().min_free_disk_bytes
