"""Regions of transacted sessions, embedded and over AMQP: held, read over what is there, committed with all else."""

from __future__ import annotations

from typing import Any

import pytest

from sdk import (
    AcknowledgeMode,
    Connection,
    IllegalStateException,
    InvalidDestinationException,
    MessageFormatException,
    Region,
    ResourceAllocationException,
    Session,
    TextMessage,
    TransactionRolledBackException,
)
from tests.sdk.region_connections import WAIT, Connect, cached, region

TRANSACTED = AcknowledgeMode.TRANSACTED


@pytest.fixture
def connection(connect: Connect) -> Connection:
    made = connect()
    made.start()
    return made


@pytest.fixture
def session(connection: Connection) -> Session:
    return connection.create_session(TRANSACTED)


@pytest.fixture
def quotes(connect: Connect, connection: Connection) -> Region:
    """As another connection has it, which sees what is committed."""
    return connect().create_session().create_region("quotes")


def everything(of: Region) -> dict[str, Any]:
    """All keys with their values, read in each way that there is."""
    found = {key: of.get(key) for key in of}
    assert of.keys() == list(found)
    assert of.get_all() == of.get_all(list(found)) == {key: each for key, each in found.items() if each is not None}
    assert dict(of) == found
    assert all(key in of for key in found)
    return found


def test_changes_are_read_by_their_session_and_by_others_once_they_are_committed(
    session: Session, quotes: Region
) -> None:
    quotes.put_all({"destroyed": "0", "invalid": "0", "kept": "0", "put": "0"})
    mine = session.create_region("quotes")
    assert mine.put("put", "1") == 0
    assert mine.put_all({"new": {"price": 1.5}, "Ä": b"x"}) == {"new": 0, "Ä": 0}
    assert mine.destroy("destroyed")
    assert mine.invalidate("invalid")
    mine["brackets"] = "2"
    mine.put("gone", "3")
    del mine["gone"]
    then = {"brackets": "2", "invalid": None, "kept": "0", "new": {"price": 1.5}, "put": "1", "Ä": b"x"}
    assert everything(mine) == then
    assert everything(quotes) == {"destroyed": "0", "invalid": "0", "kept": "0", "put": "0"}
    session.commit()
    assert everything(mine) == everything(quotes) == then


def test_what_is_not_there_is_neither_destroyed_nor_invalidated(session: Session, quotes: Region) -> None:
    mine = session.create_region("quotes")
    quotes.put("invalid", "0")
    quotes.invalidate("invalid")
    assert not mine.destroy("none")
    assert not mine.invalidate("none")
    assert not mine.invalidate("invalid")
    with pytest.raises(KeyError):
        del mine["none"]
    with pytest.raises(KeyError):
        mine["none"]
    quotes.put("none", "of another")
    mine.put("a", "1")
    assert mine.destroy("a")
    assert not mine.destroy("a")
    session.commit()
    assert everything(quotes) == {"invalid": None, "none": "of another"}


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_changes_are_gone_with_the_end_of_their_transaction(session: Session, quotes: Region, end: str) -> None:
    quotes.put("a", "0")
    mine = session.create_region("quotes")
    mine.put("a", "1")
    mine.put("b", "1")
    getattr(session, end)()
    if end == "rollback":
        assert everything(mine) == {"a": "0"}
        mine.put("c", "2")
        session.commit()
        assert everything(quotes) == {"a": "0", "c": "2"}
        return
    with pytest.raises(IllegalStateException, match="CLOSED"):
        mine.put("c", "2")
    assert everything(quotes) == {"a": "0"}


def test_one_commit_has_sends_acknowledgements_and_changes_of_several_regions(
    connect: Connect, session: Session, quotes: Region
) -> None:
    other = connect()
    other.start()
    watcher = other.create_session()
    feed = watcher.create_producer(watcher.create_queue("in"))
    feed.send("order 1")
    inbox = session.create_consumer(session.create_queue("in"))
    outbox = session.create_producer(session.create_queue("out"))
    mine, orders = session.create_region("quotes"), session.create_region("orders")
    for number in range(2):
        message = inbox.receive(WAIT)
        assert message is not None
        mine.put("last", message.body)
        outbox.send(f"done {message.body}")
        orders.put(message.body, {"state": "done"})
        if number == 0:
            session.rollback()
    seen = watcher.create_region("orders")
    assert (everything(quotes), everything(seen)) == ({}, {})
    session.commit()
    assert (everything(quotes), everything(seen)) == ({"last": "order 1"}, {"order 1": {"state": "done"}})
    done = watcher.create_consumer(watcher.create_queue("out"))
    assert [each and each.body for each in (done.receive(WAIT), done.receive(0.1))] == ["done order 1", None]
    assert watcher.create_consumer(watcher.create_queue("in")).receive(0.1) is None


def test_events_come_with_the_commit_in_the_order_of_the_changes(connect: Connect, session: Session) -> None:
    _, told = region(connect(), all_keys=True)
    mine, orders = session.create_region("quotes"), session.create_region("orders")
    mine.put("a", "1")
    orders.put("a", "x")
    mine.put("a", "2")
    mine.destroy("a")
    mine.put("b", "3")
    session.rollback()
    mine.put("a", "1")
    orders.put("a", "x")
    mine.put("a", "2")
    mine.put("b", "3")
    mine.destroy("b")
    assert told.wait_for(1) == ["live quotes"]
    session.commit()
    assert told.wait_for(5)[1:] == ["create a=1", "update a=2", "create b=3", "destroy b"]
    versions = [each.version for each in told.events]
    assert versions == sorted(set(versions))


def test_a_query_and_the_cache_of_others_see_what_is_committed_only(connect: Connect, session: Session) -> None:
    made, told = region(connect(), all_keys=True)
    mine = session.create_region("quotes")
    mine.put("a", "1")
    query = mine.create_query("all", "key LIKE '%'")
    assert query.execute_with_initial_results() == {}
    assert (cached(made), made.get("a"), mine.get("a")) == ({}, None, "1")
    session.commit()
    told.wait_for(2)
    assert cached(made) == {"a": "1"}


def test_the_cache_of_a_session_has_what_its_commit_has_changed(session: Session) -> None:
    mine = session.create_region("quotes")
    mine.put_all({"destroyed": "0", "invalid": "0", "put": "0"})
    session.commit()
    mine.register_interest(all_keys=True)
    for turn in "123":
        mine.put("put", turn)
        mine.put("new", turn)
        mine.destroy("destroyed")
        mine.invalidate("invalid")
        session.commit()
        assert cached(mine) == {"invalid": None, "put": turn, "new": turn}
        assert everything(mine) == {"invalid": None, "new": turn, "put": turn}
        mine.put("put", "undone")
        mine.put("destroyed", "undone")
        session.rollback()
        assert everything(mine) == {"invalid": None, "new": turn, "put": turn}


def test_a_message_is_held_as_it_was_put_with_its_properties(session: Session, quotes: Region) -> None:
    mine = session.create_region("quotes")
    message = TextMessage("one")
    message.properties["desk"] = "FX"
    mine.put("k", message, properties={"rank": 3})
    message.body = "two"
    held = mine.get_message("k")
    session.commit()
    for found in (held, mine.get_message("k"), quotes.get_message("k")):
        assert found is not None
        assert (found.body, dict(found.properties)) == ("one", {"desk": "FX", "rank": 3})
        assert found.message_id == message.message_id


def test_what_cannot_be_put_is_refused_at_once_and_holds_nothing(session: Session, quotes: Region) -> None:
    mine = session.create_region("quotes")
    for value in (None, 7, object()):
        with pytest.raises(MessageFormatException):
            mine.put("k", value)  # type: ignore[arg-type]
    with pytest.raises(InvalidDestinationException):
        mine.put("x" * 401, "1")
    with pytest.raises(TypeError, match="a key is a string"):
        mine.put(7, "1")  # type: ignore[arg-type]
    session.commit()
    assert everything(mine) == everything(quotes) == {}


def test_many_changes_are_one_commit(session: Session, quotes: Region) -> None:
    mine = session.create_region("quotes")
    values = {f"k{number:05}": "x" * 500 for number in range(5_000)}
    mine.put_all(values)
    assert quotes.keys() == []
    session.commit()
    assert quotes.get_all() == values


@pytest.mark.parametrize("limit", ["transaction_messages=4", "transaction_bytes=2000"])
def test_a_session_holds_as_much_as_it_may_and_a_change_beyond_that_is_not_held(connect: Connect, limit: str) -> None:
    session = connect(client=limit).create_session(TRANSACTED)
    mine = session.create_region("quotes")
    producer = session.create_producer(session.create_queue("q"))
    producer.send("x")
    mine.put_all({"a": "x" * 200, "b": "x" * 200, "c": "x" * 200})
    name = limit.partition("=")[0]
    for beyond in (lambda: mine.put("d", "x" * 2000), lambda: mine.put_all({"d": "x" * 700, "e": "x" * 700})):
        with pytest.raises(ResourceAllocationException, match=f"option {name}.*commit more often"):
            beyond()
    with pytest.raises(ResourceAllocationException, match=name):
        producer.send("x" * 2000)
    session.commit()
    assert mine.keys() == ["a", "b", "c"]
    mine.put_all({"d": "x" * 200, "e": "x" * 200, "f": "x" * 200})
    session.rollback()
    mine.put("d", "1")
    session.commit()
    assert mine.keys() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("limit", ["max_transaction_messages=3", "max_transaction_bytes=1100"])
def test_a_commit_beyond_a_limit_of_the_engine_is_rolled_back(connect: Connect, limit: str) -> None:
    session = connect(engine=limit).create_session(TRANSACTED)
    mine = session.create_region("quotes")
    producer = session.create_producer(session.create_queue("q"))
    producer.send("x")
    mine.put_all({"a": "x" * 300, "b": "x" * 300, "c": "x" * 300})
    with pytest.raises(TransactionRolledBackException, match=limit.partition("=")[0]):
        session.commit()
    assert mine.keys() == []
    producer.send("x")
    mine.put_all({"a": "x" * 300, "b": "x" * 300})
    session.commit()
    assert mine.keys() == ["a", "b"]


def test_a_value_that_is_too_large_rolls_the_commit_back_and_names_its_key(connect: Connect) -> None:
    session = connect(engine="max_message_bytes=100000").create_session(TRANSACTED)
    mine = session.create_region("quotes")
    producer = session.create_producer(session.create_queue("q"))
    for size in (99_950, 150_000):
        producer.send("lost")
        mine.put("small", "1")
        mine.put("large", "x" * size)
        with pytest.raises(TransactionRolledBackException, match=r"key 'large' of region 'quotes'.*max_message_bytes"):
            session.commit()
        assert mine.keys() == []
    mine.put_all({f"k{number}": "x" * 60_000 for number in range(5)})
    mine.put("large", "x" * 99_000)
    session.commit()
    assert len(mine.keys()) == 6


def test_a_transacted_region_is_for_the_thread_of_its_session(session: Session) -> None:
    mine = session.create_region("quotes")
    got: list[object] = []

    def handle(message: Any) -> None:
        mine.put("k", message.body)
        session.commit()
        got.append(message.body)

    consumer = session.create_consumer(session.create_queue("q"))
    producer = session.create_producer(session.create_queue("q"))
    producer.send("1")
    session.commit()
    consumer.listener = handle
    assert session._state.wait_until(lambda: bool(got), None)
    with pytest.raises(IllegalStateException, match="listeners"):
        mine.put("k", "2")
    assert mine.get("k") == "1"  # reads are for any thread


def test_sessions_of_other_modes_have_regions_as_before(connection: Connection, quotes: Region) -> None:
    mine = connection.create_session(AcknowledgeMode.CLIENT).create_region("quotes")
    version = mine.put("a", "1")
    assert version > 0
    assert quotes.get("a") == "1"
