"""``holdfast check``, ``compact`` and ``quarantine``, as an operator types them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from proton import Message, symbol

from broker_adapter.amqp.messages.payloads import read_head
from broker_adapter.destination import Destination, queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.check.pages import metas
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.layout import quarantine_key
from broker_adapter.engine.store.maintenance import check_store, quarantined, sound_store
from broker_adapter.envelope import BodyKind, Envelope, pack
from broker_adapter.errors import InvalidDestinationException
from broker_adapter.server.cli.store_commands import _put_back
from broker_adapter.settings import EngineSettings
from sdk import AcknowledgeMode, ConnectionFactory
from tests.broker_adapter.engine.asking import damage_body
from tests.broker_adapter.engine.check.test_places import page_of_one, received, shared
from tests.broker_adapter.engine.damaging import (
    ALL,
    Tables,
    Txn,
    a_message_gone,
    an_entry_gone,
    damage,
    damaged,
    filled,
    first,
    no_schedule,
    overwrite,
    page_of,
)
from tests.broker_adapter.engine.driving import WAIT, come_to_rest, connect, depth, drained, send
from tests.broker_adapter.server.cli.running import done, holdfast
from tests.forked_command import start
from tests.server_process import ServerProcess


def test_a_sound_store_is_sound_on_the_disk_and_in_a_running_server(tmp_path: Path) -> None:
    filled(tmp_path)
    assert done("check", str(tmp_path)).endswith("sound\n")
    report = json.loads(done("check", str(tmp_path), "--json"))
    assert report["sound"]
    assert report["entries"] == sum(ALL.values())
    assert report["damaged_page_count"] == 0
    with ServerProcess(tmp_path) as server:
        answer = json.loads(done("check", "--url", server.url, "--json"))
        assert answer["sound"]
        assert answer["entries"] == sum(ALL.values())
        refused = holdfast("check", str(tmp_path))
        assert refused.returncode == 1
        assert "in use by process" in refused.stderr
        assert holdfast("check", "--url", server.url, "--repair").returncode == 1


def test_what_is_wrong_is_told_repaired_and_told_no_more(tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path, a_message_gone)
    found = holdfast("check", str(tmp_path))
    assert found.returncode == 1
    assert "NOT SOUND" in found.stdout
    assert "entry without a message" in found.stdout
    assert "repaired" in done("check", str(tmp_path), "--repair")
    assert done("check", str(tmp_path)).endswith("sound\n")
    assert done("quarantine", "list", str(tmp_path)).count("entries/") == 1


def test_damaged_pages_are_told_and_what_can_be_read_is_kept(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    overwrite(tmp_path, page_of(tmp_path, "messages", 1)[0])
    found = holdfast("check", str(tmp_path))
    assert found.returncode == 1
    assert "messages: it is zeroed" in found.stdout
    assert "--repair" in found.stdout
    found = holdfast("check", str(tmp_path), "--repair", "--json")
    repaired = json.loads(found.stdout)
    assert repaired["repaired"]
    assert Path(repaired["damaged_file"]).exists()
    assert (found.returncode, repaired["lost"]) == (0, 0), "they are on another page as well"
    assert done("check", str(tmp_path)).endswith("sound\n")


def test_damage_of_the_file_itself_names_its_page_and_no_table(tmp_path: Path) -> None:
    filled(tmp_path)
    overwrite(tmp_path, 0)
    found = holdfast("check", str(tmp_path))
    assert found.returncode == 1
    assert "  page 0: it is one of the two roots of the file" in found.stdout


def test_a_repair_says_how_many_messages_it_could_not_find(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    for page in page_of(tmp_path, "messages", 2)[:5]:
        overwrite(tmp_path, page)
    found = holdfast("check", str(tmp_path), "--repair")
    assert found.returncode == 1
    assert "messages are lost: the store counts them, and no page has them" in found.stdout
    assert "an unknown number of messages" not in found.stdout
    assert done("check", str(tmp_path)).endswith("sound\n")


def test_a_delayed_message_of_another_client_keeps_its_time_where_the_schedule_is_lost(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), tmp_path)
    client = connect(broker)
    due_ms = time.time_ns() // 1_000_000 + 3_600_000
    foreign = Message(body="later", durable=True)
    foreign.annotations = {symbol("x-opt-delivery-time"): due_ms}
    payload = bytes(foreign.encode())
    delayed = c.from_head(payload, read_head(payload, 0))
    assert broker.call(c.Enqueue(client, queue("later"), [delayed]), WAIT) is None
    broker.close()
    damage(tmp_path, no_schedule)
    found = done("check", str(tmp_path), "--repair")
    assert "as its message says" in found
    assert done("check", str(tmp_path)).endswith("sound\n")
    broker = Broker(EngineSettings(), tmp_path)
    assert drained(broker, connect(broker), "later") == []
    assert depth(broker, "later") == 1
    broker.close()


def test_a_repair_says_when_pages_could_not_be_told_from_free_ones(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    data = (tmp_path / "data.mdb").read_bytes()
    overwrite(tmp_path, metas(lambda offset, size: data[offset : offset + size])[0].free.root)
    assert "the list of free pages is lost" in done("check", str(tmp_path), "--repair")


def test_a_server_that_checks_first_does_not_serve_a_damaged_store(tmp_path: Path) -> None:
    filled(tmp_path)
    with ServerProcess(tmp_path, "--check"):
        pass
    damage(tmp_path, an_entry_gone)
    refused = holdfast("serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--check")
    assert refused.returncode == 1
    assert "holdfast check" in refused.stderr
    check_store(tmp_path, EngineSettings(), repair=True)


def test_a_message_in_quarantine_is_listed_and_put_back(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        done("send", "orders", "precious", "other", "--url", server.url)

    def change_a_letter(txn: Txn, tables: Tables) -> None:
        key, value = first(txn, tables, "messages")
        txn.put(key, value.replace(b"precious", b"precioux"), db=tables["messages"])

    damage(tmp_path, change_a_letter)
    done("check", str(tmp_path), "--repair")
    listed = [json.loads(line) for line in done("quarantine", "list", str(tmp_path), "--json").splitlines()]
    (record,) = [each["record"] for each in listed if each["table"] == "messages"]
    shown = subprocess.run(
        [sys.executable, "-m", "broker_adapter.server.cli", "quarantine", "show", str(tmp_path), record],
        capture_output=True,
        check=True,
    )
    assert b"precioux" in shown.stdout
    assert holdfast("quarantine", "put-back", str(tmp_path), record).returncode == 1  # where to?
    assert done("quarantine", "put-back", str(tmp_path), record, "--queue", "rescued") == "put back 1 into rescued\n"
    assert record not in done("quarantine", "list", str(tmp_path))
    with ServerProcess(tmp_path) as server:
        assert done("receive", "orders", "--url", server.url, "--timeout", "0.5") == "other\n"
        with (
            ConnectionFactory(server.url).create_connection() as connection,
            connection.create_session(AcknowledgeMode.AUTO) as session,
        ):
            connection.start()
            message = session.create_consumer(session.create_queue("rescued")).receive(timeout=120)
            assert message is not None
            assert message.body == "precioux"


def aside(path: Path, count: int) -> None:
    """A store that has this many messages in quarantine."""
    with (
        ServerProcess(path) as server,
        ConnectionFactory(server.url).create_connection() as connection,
        connection.create_session() as session,
    ):
        producer = session.create_producer(session.create_queue("orders"))
        for number in range(count):
            producer.send(f"order {number}")

    def drop_entries(txn: Txn, tables: Tables) -> None:
        txn.drop(tables["entries"], delete=False)

    damage(path, drop_entries)
    check_store(path, EngineSettings(), repair=True)


def test_a_place_that_one_subscription_has_lost_is_reported_and_its_message_put_back(tmp_path: Path) -> None:
    shared(tmp_path)
    page, lost = page_of_one(tmp_path)
    overwrite(tmp_path, page)
    found = holdfast("check", str(tmp_path), "--repair")
    assert found.returncode == 1
    assert f"{lost} places of messages are lost" in found.stdout
    assert f"subscription 'one' of topic 'news' (client id 'me') lacks {lost} messages" in found.stdout
    into = ["--topic", "news", "--subscription", "one", "--client-id", "me"]
    assert f"holdfast quarantine put-back DIR RECORD {' '.join(into)}" in found.stdout
    again = holdfast("check", str(tmp_path))
    assert (again.returncode, again.stdout.count("sound")) == (0, 1)

    names = [line.split()[0] for line in done("quarantine", "list", str(tmp_path)).splitlines()]
    assert len(names) == lost
    back = ["quarantine", "put-back", str(tmp_path)]
    assert done(*back, names[0], "--queue", "look", "--keep") == "put back 1 into look\n"
    assert done(*back, names[0], *into) == "put back 1 into news:one\n"
    assert done(*back, "--all", *into) == f"put back {lost - 1} into news:one\n"
    got = received(tmp_path)
    assert len(got["two"]) == 300
    assert sorted(got["one"]) == sorted(got["two"])


def test_the_report_of_lost_places_is_also_one_json_object(tmp_path: Path) -> None:
    shared(tmp_path)
    page, lost = page_of_one(tmp_path)
    overwrite(tmp_path, page)
    found = holdfast("check", str(tmp_path), "--repair", "--json")
    report = json.loads(found.stdout)
    assert (found.returncode, report["repaired"], report["lost"], report["lost_places"]) == (1, True, 0, lost)
    one = {"kind": "subscription", "name": "one", "topic": "news", "client_id": "me", "messages": lost}
    assert report["lacking"] == [one]


def test_a_message_of_a_topic_says_in_quarantine_where_it_was_sent_to(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path) as server,
        ConnectionFactory(server.url).create_connection(client_id="me") as connection,
    ):
        connection.start()
        with connection.create_session() as session:
            news = session.create_topic("news")
            session.create_durable_consumer(news, "one").close()
            session.create_producer(news).send("first")
    damage(tmp_path, an_entry_gone)
    check_store(tmp_path, EngineSettings(), repair=True)
    (listed,) = done("quarantine", "list", str(tmp_path)).splitlines()
    assert listed.endswith(" sent to topic 'news'")
    refused = holdfast("quarantine", "put-back", str(tmp_path), "--all")
    assert refused.returncode == 1
    assert "--subscription" in refused.stderr
    back = ["quarantine", "put-back", str(tmp_path), "--all", "--topic", "news", "--subscription"]
    assert "there is no subscription 'two'" in holdfast(*back, "two").stderr
    assert done(*back, "one", "--client-id", "me") == "put back 1 into news:one\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--topic", "news"], "--topic needs --subscription"),
        (["--subscription", "one"], "--subscription needs --topic"),
        (["--client-id", "me", "--queue", "q"], "--client-id needs --subscription"),
        (["--topic", "news", "--subscription", "one", "--queue", "q"], "either --queue or --topic"),
    ],
)
def test_where_a_message_is_put_back_to_is_a_queue_or_a_subscription(
    tmp_path: Path, given: list[str], said: str
) -> None:
    filled(tmp_path)
    refused = holdfast("quarantine", "put-back", str(tmp_path), "--all", *given)
    assert refused.returncode == 1
    assert said in refused.stderr


def test_messages_that_were_put_back_already_are_not_put_back_again(tmp_path: Path) -> None:
    aside(tmp_path, 3)
    broker = Broker(EngineSettings(), str(tmp_path))
    records = quarantined(broker.store)
    command = c.PutBack(
        queue("rescued"), [(quarantine_key(each.table, each.key), c.NewMessage(1, b"x")) for each in records]
    )
    assert broker.call(command, 120) == 3
    assert broker.call(command, 120) == 0
    assert quarantined(broker.store) == []
    broker.close()


def test_putting_back_takes_the_options_of_the_server(tmp_path: Path) -> None:
    aside(tmp_path, 3)
    command = ["quarantine", "put-back", str(tmp_path), "--all", "--queue", "rescued", "--option"]
    refused = holdfast(*command, f"min_free_disk_bytes={1 << 60}")
    assert refused.returncode == 1
    assert "(option min_free_disk_bytes)" in refused.stderr
    assert done(*command, "min_free_disk_bytes=0") == "put back 3 into rescued\n"
    assert done("check", str(tmp_path), "--option", "max_store_bytes=20000000").endswith("sound\n")
    done("compact", str(tmp_path), "--option", "max_store_bytes=20000000")


def test_putting_back_that_is_killed_half_way_doubles_nothing(tmp_path: Path) -> None:
    count = 3000
    aside(tmp_path, count)
    for number in range(6):
        process = start(["quarantine", "put-back", str(tmp_path), "--all", "--queue", "rescued"], [0, 1, 2])
        time.sleep(0.05 + 0.15 * number)
        process.kill()
        process.wait()
    done("quarantine", "put-back", str(tmp_path), "--all", "--queue", "rescued")
    with ServerProcess(tmp_path) as server, ConnectionFactory(server.url).create_connection() as connection:
        connection.start()
        with connection.create_session() as session:
            consumer = session.create_consumer(session.create_queue("rescued"))
            found = [str(consumer.receive(timeout=120)) for _ in range(count)]
            assert consumer.receive(timeout=0) is None
    assert sorted(found) == sorted(f"order {number}" for number in range(count))


def test_what_is_in_quarantine_may_be_dropped(tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path, damaged("entries"))
    done("check", str(tmp_path), "--repair")
    assert holdfast("quarantine", "drop", str(tmp_path)).returncode == 1
    assert "there is no record" in holdfast("quarantine", "drop", str(tmp_path), "entries/00").stderr
    assert done("quarantine", "drop", str(tmp_path), "--all").startswith("dropped ")
    nothing = holdfast("quarantine", "list", str(tmp_path))
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "nothing is in quarantine\n")
    assert holdfast("quarantine", "list", str(tmp_path), "--json").stderr == ""


def test_a_message_in_quarantine_is_one_line_of_the_list_with_its_entry(tmp_path: Path) -> None:
    """A thousand damaged bodies were two thousand lines."""
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker)
    send(broker, client, "q", "first", "second")
    for body in (b"first", b"second"):
        damage_body(broker, body)
    assert drained(broker, client, "q") == []
    broker.close()
    lines = done("quarantine", "list", str(tmp_path)).splitlines()
    assert [line.split("  ")[2] for line in lines] == [
        f"message {number}, damaged, with its entry" for number in (1, 2)
    ]
    listed = [json.loads(line) for line in done("quarantine", "list", str(tmp_path), "--json").splitlines()]
    assert [each.get("entry_of") for each in listed] == [1, 2, None, None]
    assert [each.get("message") for each in listed] == [None, None, 1, 2]
    done("quarantine", "drop", str(tmp_path), lines[0].split()[0])
    assert "message 1" not in done("quarantine", "list", str(tmp_path))
    assert len(done("quarantine", "list", str(tmp_path), "--json").splitlines()) == 2


def test_several_messages_in_quarantine_are_shown_one_by_one(tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path, damaged("messages"))
    damage(tmp_path, damaged("entries"))
    done("check", str(tmp_path), "--repair")
    listed = [json.loads(line) for line in done("quarantine", "list", str(tmp_path), "--json").splitlines()]
    records = [each["record"] for each in listed]
    assert len(records) >= 2
    shown = [json.loads(line) for line in done("quarantine", "show", str(tmp_path), *records, "--json").splitlines()]
    assert [each["record"] for each in shown] == records
    assert all(base64.b64decode(each["content"]["base64"]) for each in shown)
    shown = [
        json.loads(line)
        for line in done("quarantine", "show", str(tmp_path), records[0], "--json", *records[1:]).splitlines()
    ]
    assert [each["record"] for each in shown] == records
    assert json.loads(done("quarantine", "show", str(tmp_path), "--json", records[0]))["record"] == records[0]
    wrong = holdfast("quarantine", "show", str(tmp_path), "--json", records[0], "--zero")
    assert f"unrecognized arguments: {records[0]} --zero\n" in wrong.stderr
    command = [sys.executable, "-m", "broker_adapter.server.cli", "quarantine", "show", str(tmp_path), *records]
    several = subprocess.run(command, capture_output=True, check=True).stdout
    for each in records:
        assert f"== {each} ==\n".encode() in several
    messages = [each["record"] for each in listed if each["record"].startswith("messages/")]
    assert done("quarantine", "show", str(tmp_path), "--all", "--json").count("messages/") == len(messages)
    none = holdfast("quarantine", "show", str(tmp_path))
    assert "name the records, as 'holdfast quarantine list' does, or give --all" in none.stderr
    assert "show, put-back: all messages" in " ".join(done("quarantine", "--help").split())


def test_a_store_is_compacted(tmp_path: Path) -> None:
    filled(tmp_path, 3000)
    with ServerProcess(tmp_path) as server:
        done("purge", "orders", "--yes", "--url", server.url)
    sizes = json.loads(done("compact", str(tmp_path), "--json"))
    assert sizes["after"] < sizes["before"]
    assert done("check", str(tmp_path)).endswith("sound\n")


def test_what_is_no_store_is_no_store(tmp_path: Path) -> None:
    for command in (("check",), ("compact",), ("quarantine", "list")):
        finished = holdfast(*command, str(tmp_path / "nowhere"))
        assert finished.returncode == 1, command
        assert "there is no store" in finished.stderr
        assert not (tmp_path / "nowhere").exists()


def test_listing_the_quarantine_changes_nothing(tmp_path: Path) -> None:
    """What expires and is due is for the server, which has its own options for that."""
    aside(tmp_path, 2)
    broker = Broker(EngineSettings(expiry_queue="late", min_free_disk_bytes=0), str(tmp_path))
    send(broker, connect(broker), "q", "mortal", expires_at_ms=time.time_ns() // 1_000_000 + 200)
    broker.close()
    time.sleep(0.3)
    before = (tmp_path / "data.mdb").read_bytes()
    names = [line.split()[0] for line in done("quarantine", "list", str(tmp_path)).splitlines()]
    assert done("quarantine", "show", str(tmp_path), names[0], "--json")
    assert (tmp_path / "data.mdb").read_bytes() == before
    done("quarantine", "put-back", str(tmp_path), names[0], "--queue", "back")
    done("quarantine", "drop", str(tmp_path), names[1])
    broker = Broker(EngineSettings(expiry_queue="late", min_free_disk_bytes=0), str(tmp_path))
    come_to_rest(broker)
    assert [depth(broker, name) for name in ("back", "late", "q")] == [1, 1, 0]
    broker.close()


def test_a_store_with_damaged_pages_is_checked_before_its_quarantine_is_listed(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    overwrite(tmp_path, page_of(tmp_path, "messages", 1)[0])
    for action in (("list",), ("put-back", "--all", "--queue", "q"), ("drop", "--all")):
        refused = holdfast("quarantine", action[0], str(tmp_path), *action[1:])
        assert refused.returncode == 1
        assert "pages of the store" in refused.stderr
        assert "--repair" in refused.stderr


def test_messages_that_only_lost_their_entries_go_back_to_their_queues(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), tmp_path)
    client = connect(broker)
    for name, count in (("orders", 3), ("bills", 2)):
        envelopes = [Envelope(queue(name), BodyKind.TEXT, f"{name} {number}") for number in range(count)]
        broker.call(c.Enqueue(client, queue(name), [c.from_envelope(pack(each), each) for each in envelopes]), WAIT)
    broker.close()

    def drop_entries(txn: Txn, tables: Tables) -> None:
        txn.drop(tables["entries"], delete=False)

    damage(tmp_path, drop_entries)
    check_store(tmp_path, EngineSettings(), repair=True)
    assert done("quarantine", "list", str(tmp_path)).count("sent to 'orders'") == 3
    listed = [json.loads(line) for line in done("quarantine", "list", str(tmp_path), "--json").splitlines()]
    assert [(each["sound"], each["queue"]) for each in listed] == [(True, "orders")] * 3 + [(True, "bills")] * 2
    record = listed[0]["record"]
    assert done("quarantine", "put-back", str(tmp_path), record, record) == "put back 1 into orders\n"
    assert done("quarantine", "put-back", str(tmp_path), "--all") == "put back 2 into bills, 2 into orders\n"
    broker = Broker(EngineSettings(), tmp_path)
    client = connect(broker)
    assert (len(drained(broker, client, "orders")), len(drained(broker, client, "bills"))) == (3, 2)
    broker.close()


def test_a_damaged_message_goes_back_only_to_a_queue_that_is_named(tmp_path: Path) -> None:
    """Its own word for its queue may be what was changed."""
    broker = Broker(EngineSettings(), tmp_path)
    envelope = Envelope(queue("orders"), BodyKind.TEXT, "precious")
    broker.call(c.Enqueue(connect(broker), queue("orders"), [c.from_envelope(pack(envelope), envelope)] * 2), WAIT)
    broker.close()

    def change_a_letter(txn: Txn, tables: Tables) -> None:
        key, value = first(txn, tables, "messages")
        txn.put(key, value.replace(b"orders", b"ordars"), db=tables["messages"])
        txn.drop(tables["entries"], delete=False)

    damage(tmp_path, change_a_letter)
    check_store(tmp_path, EngineSettings(), repair=True)
    assert ", damaged\n" in done("quarantine", "list", str(tmp_path))
    refused = holdfast("quarantine", "put-back", str(tmp_path), "--all")
    assert (refused.returncode, refused.stdout) == (1, "put back 1 into orders\n"), "the sound one is not held up"
    assert "1 message stays: messages/" in refused.stderr
    assert "cannot be trusted; name one with --queue" in refused.stderr
    again = json.loads(holdfast("quarantine", "put-back", str(tmp_path), "--all", "--json").stdout)
    assert (again["put_back"], len(again["left"])) == (0, 1)
    assert done("quarantine", "put-back", str(tmp_path), "--all", "--queue", "rescued") == "put back 1 into rescued\n"


@pytest.mark.parametrize("to", ["", "x" * 500, "a\0b"])
def test_a_message_that_names_no_possible_queue_holds_up_no_other(tmp_path: Path, to: str) -> None:
    broker = Broker(EngineSettings(), tmp_path)
    foreign = Envelope(queue("orders"), BodyKind.TEXT, "foreign")._replace(destination=Destination(to))
    ours = Envelope(queue("orders"), BodyKind.TEXT, "ours")
    messages = [c.from_envelope(pack(each), each) for each in (ours, foreign, ours)]
    broker.call(c.Enqueue(connect(broker), queue("orders"), messages), WAIT)
    broker.close()

    def drop_entries(txn: Txn, tables: Tables) -> None:
        txn.drop(tables["entries"], delete=False)

    damage(tmp_path, drop_entries)
    check_store(tmp_path, EngineSettings(), repair=True)
    refused = holdfast("quarantine", "put-back", str(tmp_path), "--all")
    assert (refused.returncode, refused.stdout) == (1, "put back 2 into orders\n")
    assert "1 message stays: messages/" in refused.stderr
    assert done("quarantine", "put-back", str(tmp_path), "--all", "--queue", "rescued") == "put back 1 into rescued\n"


def test_what_was_put_back_ahead_of_an_error_is_counted(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), tmp_path)
    for name in ("a", "b"):
        envelope = Envelope(queue(name), BodyKind.TEXT, "x")
        broker.call(c.Enqueue(connect(broker), queue(name), [c.from_envelope(pack(envelope), envelope)]), WAIT)
    broker.close()

    def drop_entries(txn: Txn, tables: Tables) -> None:
        txn.drop(tables["entries"], delete=False)

    damage(tmp_path, drop_entries)
    check_store(tmp_path, EngineSettings(), repair=True)
    with sound_store(str(tmp_path), EngineSettings()) as store:
        first, second = quarantined(store)
    counts: dict[str, int] = {}
    with pytest.raises(InvalidDestinationException):
        _put_back(str(tmp_path), EngineSettings(), {"a": [first], "": [second]}, counts)
    assert counts == {"a": 1}
