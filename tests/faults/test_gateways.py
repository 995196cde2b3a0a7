"""Two sites, and faults on the way between them: what one sends arrives at the other, each once and in order."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import pytest

from sdk import AcknowledgeMode, Connection, ConnectionFactory, IllegalStateException, JMSException
from tests.broker_adapter.server.cli.running import done
from tests.faults.proxy import Cut, Direction, Proxy
from tests.faults.scenarios import wait_for
from tests.faults.sites import OPTIONS, Site, numbered, url_of
from tests.server_process import ServerProcess

MOST = 100_000  #: bytes of a message at the second site
WHOLE: dict[str, Any] = {"group_transaction_events": True}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    directory = tmp_path_factory.mktemp("sites")
    made = [
        Site(1, directory / "one", log=directory / "log"),
        Site(2, directory / "two", "--option", f"max_message_bytes={MOST}"),
    ]
    yield made[0], made[1]
    for each in made:
        each.close()


@pytest.fixture
def here(sites: tuple[Site, Site]) -> Iterator[Site]:
    yield sites[0]
    for each in sites[0].ask("gateways"):
        sites[0].ask("destroy_gateway", name=each["name"])


@pytest.fixture
def there(sites: tuple[Site, Site]) -> Site:
    return sites[1]


@pytest.fixture
def way(there: Site) -> Iterator[Proxy]:
    with Proxy(there.server.port) as proxy:
        yield proxy


@pytest.fixture
def name() -> str:
    """Of a queue, and of the gateway that sends what it takes."""
    return f"q{uuid4().hex}"


def test_what_was_sent_while_the_other_site_was_away_arrives(here: Site, there: Site, way: Proxy, name: str) -> None:
    way.refuse()
    here.gateway(name, url_of(way, "allow_plain_without_tls=true").replace("//", "//me:secret@"), f"queue:{name}")
    here.send(name, numbered(0, 500))
    assert wait_for(lambda: here.gateways(name)["trouble"] != "")
    here.restart()
    here.send(name, numbered(500, 1000))
    assert here.gateways(name)["waiting"] == 1000
    assert wait_for(lambda: here.gateways(name)["trouble"] != "")
    way.refuse(False)
    found = here.drained(name)
    assert (found["distributed"], found["trouble"], found["received"]) == (1000, "", 1000)
    assert there.bodies(name) == here.bodies(name) == numbered(0, 1000)
    assert [each.message_id for each in there.waiting(name)] == [each.message_id for each in here.waiting(name)]
    log = here.log()
    assert log.count(f"gateway {name!r}: nothing can be sent, and is tried again each 0.05 s") == 2  # once a start
    assert f"gateway {name!r}: the other site takes messages again" in log
    assert "secret" not in log + str(found)


@pytest.mark.parametrize("direction", Direction, ids=lambda each: each.name)
def test_batches_and_their_answers_may_be_cut_at_any_frame(
    here: Site, there: Site, way: Proxy, name: str, direction: Direction
) -> None:
    here.gateway(name, url_of(way), f"queue:{name}", batch_messages=1)
    sent = cuts = after = 0
    while True:
        here.ask("change_gateway", name=name, state="paused")
        assert wait_for(lambda: way.open == 0)
        here.send(name, numbered(sent, sent + 3))
        sent += 3
        way.plan(Cut(direction, frames=after, into_next=5 * (after % 2)))
        here.ask("change_gateway", name=name, state="running")
        here.drained(name)
        if way.cuts == cuts:
            break  # that is more frames than there are
        cuts = way.cuts
        after += 1
    assert after >= way.frames[direction] > 5
    assert there.bodies(name) == numbered(0, sent)


def test_batches_without_an_answer_stay_and_are_applied_once(here: Site, there: Site, way: Proxy, name: str) -> None:
    here.gateway(name, url_of(way), f"queue:{name}")
    here.send(name, ["first"])
    here.drained(name)
    for number in range(5):
        way.hold(Direction.TO_CLIENT)
        for place in range(3 * number, 3 * number + 3):
            here.send(name, [str(place)])
            assert wait_for(lambda count=place + 2: len(there.bodies(name)) == count)
        found = here.gateways(name)
        assert (found["waiting"], found["is_sending"]) == (3, True)
        way.cut()
        way.hold()
        here.drained(name)
    assert there.bodies(name) == ["first", *numbered(0, 15)]


def test_nothing_leaves_once_pause_has_returned(here: Site, there: Site, way: Proxy, name: str) -> None:
    here.gateway(name, url_of(way), f"queue:{name}")
    here.send(name, ["first"])
    here.drained(name)
    way.hold(Direction.TO_CLIENT)
    for number in range(3):
        here.send(name, [f"under way {number}"])
        assert wait_for(lambda count=number + 2: len(there.bodies(name)) == count)
    pausing = threading.Thread(target=done, args=("gateway", "pause", name, "--url", here.server.url))
    pausing.start()
    assert wait_for(lambda: here.gateways(name)["state"] == "paused")
    here.send(name, ["paused"])
    assert pausing.is_alive()
    way.hold()
    pausing.join()
    found = here.gateways(name)
    assert (found["waiting"], found["distributed"], found["is_sending"]) == (1, 4, False)
    expected = ["first", *(f"under way {number}" for number in range(3))]
    assert there.bodies(name) == expected
    done("gateway", "resume", name, "--url", here.server.url)
    here.drained(name)
    assert there.bodies(name) == [*expected, "paused"]


def test_nothing_that_a_clean_start_has_dropped_travels_afterwards(
    here: Site, there: Site, way: Proxy, name: str
) -> None:
    here.gateway(name, url_of(way), f"queue:{name}")
    here.send(name, ["first"])
    here.drained(name)
    way.hold(Direction.TO_SERVER)
    here.send(name, ["under way"])
    assert wait_for(lambda: here.gateways(name)["is_sending"])
    starting = threading.Thread(
        target=done, args=("gateway", "start", name, "--clean", "--yes", "--url", here.server.url)
    )
    starting.start()
    assert wait_for(lambda: here.gateways(name)["state"] == "stopped")
    assert starting.is_alive()
    way.hold()
    starting.join()
    here.send(name, ["new"])
    found = here.drained(name)
    assert (found["distributed"], found["dropped"], found["state"]) == (3, 0, "running")
    assert there.bodies(name) == ["first", "under way", "new"]


def test_what_the_other_site_refuses_is_kept_with_the_reason(here: Site, there: Site, way: Proxy, name: str) -> None:
    here.gateway(name, url_of(way), f"queue:{name}")
    here.ask("change_gateway", name=name, state="paused")
    bodies = ["x" * 2 * MOST if number == 7 else f"{number} " + "y" * (MOST // 4) for number in range(1, 11)]
    here.send(name, bodies)
    here.ask("change_gateway", name=name, state="running")
    found = here.drained(name)
    assert (found["distributed"], found["refused"]) == (9, 1)
    assert there.bodies(name) == [*bodies[:6], *bodies[7:]]
    (refused,) = here.waiting(f"$gateway/{name}/refused")
    assert refused.body == bodies[6]
    assert f"larger than the limit of {MOST} bytes" in str(refused.properties["JMS_HOLDFAST_DEAD_LETTER_REASON"])
    assert here.log().count(f"a message of gateway {name!r} went to the queue") == 1


def test_changes_of_keys_arrive_but_reads_and_invalidations_do_not(
    here: Site, there: Site, way: Proxy, name: str
) -> None:
    mine, theirs = here.session.create_region(name), there.session.create_region(name)
    here.gateway(name, url_of(way), f"region:{name}")
    mine.put("IBM", "1")
    mine.put("IBM", "2")
    mine.put_all({"SAP": "3", "HPQ": "4"})
    assert mine.get("SAP") == "3"
    mine.invalidate("SAP")
    mine.destroy("HPQ")
    assert here.drained(name)["received"] == 5
    assert theirs.get_all() == {"IBM": "2", "SAP": "3"}


def test_a_new_site_gets_what_there_was_before_and_changes_meanwhile_win(
    here: Site, there: Site, way: Proxy, name: str
) -> None:
    mine, theirs = here.session.create_region(name), there.session.create_region(name)
    mine.put_all({str(number): "old" for number in range(3000)})
    mine.destroy("7")
    here.send(name, numbered(0, 1500))
    here.gateway(name, url_of(way), f"region:{name}", f"queue:{name}")
    copying = threading.Thread(target=done, args=("gateway", "copy", name, "--url", here.server.url))
    copying.start()
    for number in range(0, 3000, 100):
        mine.put(str(number), "new")
        theirs.put(str(number + 1), "newer there")
    copying.join()
    assert here.drained(name)["distributed"] == 3000 + 30 + 1500
    assert there.bodies(name) == numbered(0, 1500)
    found = {key: value for key, value in theirs.get_all().items() if value != "newer there"}
    assert found == {key: value for key, value in mine.get_all().items() if int(key) % 100 != 1}
    assert len(found) == 3000 - 30 - 1


def test_a_region_that_the_other_site_has_not_is_refused(here: Site, there: Site, way: Proxy, name: str) -> None:
    here.session.create_region(name).put("early", "1")
    here.gateway(name, url_of(way), f"region:{name}", f"queue:{name}")
    here.session.create_region(name).put("IBM", "1")
    here.send(name, ["goes on"])
    assert here.drained(name)["refused"] == 1
    assert there.bodies(name) == ["goes on"]
    theirs = there.session.create_region(name)
    here.session.create_region(name).put("IBM", "2")
    here.drained(name)
    assert theirs.get_all() == {"IBM": "2"}


def test_two_sites_may_send_to_each_other(here: Site, there: Site, way: Proxy, name: str) -> None:
    regions = [each.session.create_region(name) for each in (here, there)]
    with Proxy(here.server.port) as back:
        here.gateway(name, url_of(way), f"queue:{name}", f"region:{name}")
        there.gateway(name, url_of(back), f"queue:{name}", f"region:{name}")
        for number in range(20):
            here.send(name, [f"from one: {number}"])
            there.send(name, [f"from two: {number}"])
            regions[number % 2].put(str(number), str(number))
        for site in (here, there):
            assert wait_for(lambda site=site: len(site.bodies(name)) == 40)
            assert wait_for(lambda site=site: site.session.create_region(name).get_all() == regions[0].get_all())
            assert site.drained(name)["distributed"] == 30
        for site in (here, there):
            assert [each for each in site.bodies(name) if "one" in each] == [f"from one: {n}" for n in range(20)]
            assert [each for each in site.bodies(name) if "two" in each] == [f"from two: {n}" for n in range(20)]
        assert regions[0].get_all() == regions[1].get_all() == {str(number): str(number) for number in range(20)}
        there.ask("destroy_gateway", name=name)


def test_a_topic_and_a_transaction_arrive_and_what_was_rolled_back_does_not(
    here: Site, there: Site, way: Proxy, name: str
) -> None:
    here.gateway(name, url_of(way), f"topic:{name}", f"queue:{name}", selector="wanted = TRUE")
    subscriber = there.session.create_shared_durable_consumer(there.session.create_topic(name), name)
    with here.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        queue, topic = session.create_queue(name), session.create_topic(name)
        producer = session.create_producer()
        for text, wanted in (("kept", True), ("left", False)):
            for destination in (queue, topic):
                message = session.create_text_message(text)
                message.properties["wanted"] = wanted
                producer.send(message, destination)
        session.commit()
        message = session.create_text_message("rolled back")
        message.properties["wanted"] = True
        producer.send(message, queue)
        session.rollback()
    found = here.drained(name)
    assert (found["received"], found["filtered"], found["distributed"]) == (4, 2, 2)
    assert there.bodies(name) == ["kept"]
    message = subscriber.receive(60)
    assert message is not None
    assert message.body == "kept"
    assert subscriber.receive_nowait() is None
    subscriber.close()
    there.session.unsubscribe(name)


def test_sessions_that_send_at_the_same_time_have_transactions_of_their_own(here: Site, way: Proxy, name: str) -> None:
    region = here.session.create_region(name)
    here.gateway(name, url_of(way), f"queue:{name}", f"region:{name}", **WHOLE)
    here.ask("change_gateway", name=name, state="paused")
    with ExitStack() as ends:
        sessions = [ends.enter_context(here.connection.create_session(AcknowledgeMode.TRANSACTED)) for _ in range(3)]
        producers = [session.create_producer(session.create_queue(name)) for session in sessions]
        for number in range(4):
            for index, (session, producer) in enumerate(zip(sessions, producers, strict=True)):
                producer.send(f"{number} of {index}")
                session.create_region(name).put(f"{number} of {index}", "x")
            here.send(name, ["alone"])
        for session in reversed(sessions):
            session.commit()
        region.put_all(dict.fromkeys(numbered(0, 5), "x"))
    found = here.ask("read_gateway", name=name, max_messages=9)
    alone = [False] * 4
    assert [position in found["joined"] for position, *_ in found["entries"]] == [*alone, False, *[True] * 7]
    found = here.ask("read_gateway", name=name, max_messages=100)
    whole = [False, *[True] * 7]
    assert [position in found["joined"] for position, *_ in found["entries"]] == [*alone, *whole * 3, *whole[:5]]


def test_a_transaction_is_one_batch_whatever_its_size_or_is_refused_as_a_whole(
    here: Site, there: Site, way: Proxy, name: str
) -> None:
    here.gateway(name, url_of(way), f"queue:{name}", batch_bytes=2000, **WHOLE)
    expected = []
    with here.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        producer = session.create_producer(session.create_queue(name))
        for messages, size, is_taken in (
            (60, 1000, True),
            (3, 10, True),
            (90, 100_000, False),
            (120, 1000, False),
            (2, 10, True),
        ):
            bodies = [f"{number} of {messages} " + "x" * size for number in range(messages)]
            for body in bodies:
                producer.send(body)
            session.commit()
            expected += bodies if is_taken else []
            found = here.drained(name)
    assert (found["distributed"], found["refused"]) == (65, 210)
    assert there.bodies(name) == expected
    refused = here.waiting(f"$gateway/{name}/refused")
    reasons = [str(each.properties["JMS_HOLDFAST_DEAD_LETTER_REASON"]) for each in refused]
    assert ["(max_gateway_batch_bytes) go to another site together" in reason for reason in reasons[:90]] == [True] * 90
    assert ["larger than the limit of 100000 bytes" in reason for reason in reasons[90:]] == [True] * 120


def test_why_nothing_can_be_sent_is_shown(here: Site, name: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "three") as no_site:
        for url, reason in (
            ("amqp://127.0.0.1:1", "nothing listens there"),
            (no_site.url, "this server takes nothing from other sites: it has no site (option site)"),
            (here.server.url, "site 1 sends to itself"),
        ):
            here.gateway(f"{name}{reason[:4]}", f"{url}?{OPTIONS}", f"queue:{name}")
            here.send(name, ["waits"])
            assert wait_for(lambda each=f"{name}{reason[:4]}", text=reason: text in here.gateways(each)["trouble"])
        with (
            ConnectionFactory(no_site.url).create_connection() as connection,
            pytest.raises(IllegalStateException, match="a gateway needs a site of its own"),
        ):
            connection.request("create_gateway", {"name": "g", "url": here.server.url, "destinations": ["queue:q"]})


def test_a_gateway_logs_in_as_the_user_of_its_url(here: Site, name: str, tmp_path: Path) -> None:
    users = str(tmp_path / "users")
    done("user", "add", users, "north", "--iterations", "4096", HOLDFAST_PASSWORD="se cret")
    with ServerProcess(tmp_path / "two", "--site", "2", "--users", users) as there:
        url = there.url.replace("//", "//north:{}@")
        here.gateway(name, url.format("wrong"), f"queue:{name}")
        here.send(name, ["waits"])
        assert wait_for(lambda: here.gateways(name)["trouble"] != "")
        here.ask("change_gateway", name=name, url=url.format("se%20cret"))
        found = here.drained(name)
        assert (found["distributed"], found["url"]) == (1, there.url.replace("//", "//***@"))
    assert not [each for each in ("se cret", "se%20cret", "wrong@") if each in here.log()]


def test_a_site_that_was_restored_from_a_copy_gets_no_more_until_that_is_allowed(tmp_path: Path) -> None:
    here, there = Site(1, tmp_path / "one"), Site(2, tmp_path / "two")
    here.gateway("g", f"{there.server.url}?{OPTIONS}", "queue:q")
    here.send("q", ["before"])
    here.drained("g")
    there.server.stop()
    shutil.copytree(tmp_path / "two", tmp_path / "copy")
    there.server.start()
    here.send("q", ["lost with the store"])
    here.drained("g")
    there.server.kill()
    shutil.rmtree(tmp_path / "two")
    (tmp_path / "copy").rename(tmp_path / "two")
    there.server.start()
    here.send("q", ["after"])
    assert wait_for(lambda: "restored from an older copy" in here.gateways("g")["trouble"])
    assert there.bodies("q") == ["before"]
    done("gateway", "alter", "g", "--forget", "--url", here.server.url)
    here.drained("g")
    assert there.bodies("q") == ["before", "after"]
    for each in (here, there):
        each.close()


@pytest.mark.crash
def test_either_site_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    chance = random.Random(random.randrange(1 << 32))
    here, there = Site(1, tmp_path / "one"), Site(2, tmp_path / "two")
    with Proxy(there.server.port) as way:
        here.gateway("g", url_of(way), "queue:q", batch_bytes=2000)
        sent = 0
        for number in range(10):
            here.send("q", numbered(sent, sent + 200))
            sent += 200
            threading.Event().wait(chance.random() * 0.05)
            (here, there)[number % 2].restart()
        here.send("q", numbered(sent, sent + 1))  # then the sender is connected again
        sent += 1
        here.drained("g")
        assert there.bodies("q") == here.bodies("q") == numbered(0, sent)
        way.hold(Direction.TO_CLIENT)
        here.send("q", ["last"])
        assert wait_for(lambda: here.gateways("g")["is_sending"])
        assert here.server.stop() == 0  # while an answer does not come
    for each in (here, there):
        each.close()


def test_an_application_with_an_embedded_store_is_a_site_that_sends(
    there: Site, way: Proxy, name: str, tmp_path: Path
) -> None:
    url = f"embedded:{tmp_path}?site=7&gateway_retry_seconds=0.05"
    way.refuse()
    sent = 0
    for turn in range(3):
        with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
            if not turn:
                given = {"name": "home", "url": url_of(way), "destinations": [f"queue:{name}"], "state": "running"}
                connection.request("create_gateway", {**given, "batch_ms": 0})
            with session.create_producer(session.create_queue(name)) as producer:
                producer.send_all(numbered(sent, sent + 100))
            sent += 100
            if turn == 1:
                way.refuse(False)  # the network is back

            def waiting(connection: Connection = connection) -> int:
                return int(connection.request("gateways", {})[0]["waiting"])

            assert turn or waiting() == 100
            if turn:
                assert wait_for(lambda: waiting() == 0)
                assert there.bodies(name) == numbered(0, sent)
    assert not [each for each in threading.enumerate() if each.name.startswith("holdfast-gateway")]


@pytest.mark.crash
def test_who_looks_all_the_time_never_sees_a_part_of_a_transaction(tmp_path: Path) -> None:
    chance = random.Random(random.randrange(1 << 32))
    here, there = Site(1, tmp_path / "one"), Site(2, tmp_path / "two")
    looked, parts, ends = Event(), list[object](), Event()

    def look() -> None:
        with ConnectionFactory(f"{there.server.url}?reconnect_delay_seconds=0.01").create_connection() as connection:
            region = connection.create_session().create_region("r")
            while not ends.wait(0.002):
                with suppress(JMSException):
                    counts = {each.name: each.messages for each in connection.statistics().queues}
                    values = region.get_all()
                    if counts.get("q", 0) % 3 or len({*values.values()}) > 1 or len(values) not in (0, 3):
                        parts.append((counts, values))
                    looked.set()

    with Proxy(there.server.port) as way, here.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        mine, _ = (site.session.create_region("r") for site in (here, there))
        here.gateway("g", url_of(way), "queue:q", "region:r", batch_messages=2, batch_bytes=200, **WHOLE)
        way.delay(0.002)
        thread = threading.Thread(target=look)
        thread.start()
        region, producer = session.create_region("r"), session.create_producer(session.create_queue("q"))
        for number in range(40):
            for key in "abc":
                region.put(key, str(number))
                producer.send(f"{number} {key}")
            session.commit()
            if number % 5 == 4:
                looked.clear()
                assert wait_for(looked.is_set)
                fault = chance.choice((here.restart, there.restart, way.cut, None))
                if fault is None:
                    way.plan(Cut(chance.choice([*Direction]), frames=chance.randrange(20)))
                else:
                    fault()
        found = here.drained("g")
        ends.set()
        thread.join()
        assert parts == []
        assert (found["refused"], found["lost"], found["batches_with_incomplete_transactions"]) == (0, 0, 0)
        assert there.bodies("q") == here.bodies("q") == [f"{number} {key}" for number in range(40) for key in "abc"]
        assert mine.get_all() == dict.fromkeys("abc", "39")
    for each in (here, there):
        each.close()


@pytest.mark.crash
def test_a_queue_that_is_moved_is_at_the_other_site_only_whichever_site_is_killed(tmp_path: Path) -> None:
    here, there = Site(1, tmp_path / "one"), Site(2, tmp_path / "two")
    here.gateway("g", f"{there.server.url}?{OPTIONS}", "move:q", batch_bytes=2000)
    for number in range(4):
        here.send("q", numbered(200 * number, 200 * number + 200))
        (here, there)[number % 2].restart()
    here.drained("g")
    assert there.bodies("q") == numbered(0, 800)
    assert here.bodies("q") == []
    for each in (here, there):
        each.close()
