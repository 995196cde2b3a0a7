"""``holdfast serve --follow``, ``promote`` and ``group status``: a copy of a server, by processes that are killed."""

from __future__ import annotations

import json
import re
import threading
from contextlib import closing
from mmap import PAGESIZE
from pathlib import Path

import pytest

from broker_adapter.engine.store.lmdb_store import beside
from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.group.etcd import EtcdCoordinator, access_of
from broker_adapter.group.record import GroupRecord, NodeRecord, encoded
from broker_adapter.settings import EngineSettings
from sdk import AcknowledgeMode, ConnectionFactory, JMSException
from tests.broker_adapter.engine.driving import eventually
from tests.broker_adapter.engine.storing import damage
from tests.broker_adapter.group.small_etcd import SmallEtcd
from tests.broker_adapter.server.cli.running import done, holdfast
from tests.broker_adapter.server.cli.test_serve import make_certificate
from tests.copy_process import CopyProcess, caught_up, differences, records
from tests.server_process import ServerProcess


def lines(text: str) -> list[list[str]]:
    """The words of each line."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


def test_a_copy_takes_over_with_messages_acknowledgements_clients_and_values(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with ServerProcess(first) as server, CopyProcess(second, server.url) as copy:
        with (
            ConnectionFactory(server.url).create_connection(client_id="trader") as connection,
            connection.create_session(AcknowledgeMode.CLIENT) as session,
        ):
            session.create_region("quotes")["ABC"] = "1.5"
            producer = session.create_producer(session.create_queue("orders"))
            for number in range(5):
                producer.send(str(number))
            connection.start()
            consumer = session.create_consumer(session.create_queue("orders"))
            messages = [consumer.receive(timeout=60) for _ in range(3)]
            assert messages[-1] is not None
            messages[-1].acknowledge()
            session.create_durable_consumer(session.create_topic("news"), "mine").close()
            session.create_producer(session.create_topic("news")).send("headline")
        caught_up(server.url)
        server.kill()
        assert copy.stop() == 0
        said = done("promote", str(second))
        assert said.startswith(f"{second} was a copy of {server.url}, up to commit ")
        assert said.endswith(f"; serve it: holdfast serve --data {second}\n")
        with ServerProcess(second) as promoted:
            assert done("browse", "orders", "--url", promoted.url) == "3\n4\n"
            with (
                ConnectionFactory(promoted.url).create_connection(client_id="trader") as connection,
                connection.create_session() as session,
            ):
                assert session.create_region("quotes")["ABC"] == "1.5"
                connection.start()
                news = session.create_durable_consumer(session.create_topic("news"), "mine").receive(timeout=60)
                assert news is not None
                assert news.body == "headline"
            done("send", "orders", "new", "--url", promoted.url)
            # What was the server is a copy now.
            with CopyProcess(first, promoted.url):
                caught_up(promoted.url)
                done("send", "orders", "newer", "--url", promoted.url)
                caught_up(promoted.url)
        assert differences(second, first) == []
        assert check_store(first, EngineSettings()).is_sound


def test_clients_go_on_with_the_promoted_copy(tmp_path: Path) -> None:
    """A URL that names both is all that they need; what is sent again is no second message."""
    with ServerProcess(tmp_path / "first") as server, CopyProcess(tmp_path / "second", server.url) as copy:
        promoted = ServerProcess(tmp_path / "second")
        caught_up(server.url)
        copy.kill()
        done("promote", str(tmp_path / "second"))
        promoted.start()
        other = promoted.port
        promoted.stop()
        url = f"failover:(amqp://127.0.0.1:{server.port},amqp://127.0.0.1:{other})"
        server.stop()
        server.start()
        with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
            producer = session.create_producer(session.create_queue("q"))
            producer.send("on the first")
            server.kill()
            promoted.start()
            producer.send("on the second")
        assert done("browse", "q", "--url", promoted.url) == "on the second\n"
        promoted.kill()


def test_a_copy_is_not_served_by_anybody(tmp_path: Path) -> None:
    path = tmp_path / "copy"
    with ServerProcess(tmp_path / "server") as server, CopyProcess(path, server.url) as copy:
        caught_up(server.url)
        for command in (("serve", "--data", str(path), "--listen", "127.0.0.1:0"), ("promote", str(path))):
            refused = holdfast(*command)
            assert refused.returncode == 1
            assert "is in use" in refused.stderr or "has it open" in refused.stderr, refused.stderr
        assert copy.stop() == 0
    refused = holdfast("serve", "--data", str(path), "--listen", "127.0.0.1:0")
    assert refused.returncode == 1
    assert f"go on following (holdfast serve --data {path}, with --follow or --group as before)" in refused.stderr
    assert f"make it one: holdfast promote {path}" in refused.stderr
    assert "Traceback" not in refused.stderr
    with pytest.raises(JMSException, match="holdfast promote"):
        ConnectionFactory(f"embedded:{path}").create_connection()
    done("check", str(path))
    done("compact", str(path))
    with ServerProcess(tmp_path / "server") as server, CopyProcess(path, server.url):
        caught_up(server.url)


def test_what_is_no_whole_copy_is_not_promoted(tmp_path: Path) -> None:
    refused = holdfast("promote", str(tmp_path / "nothing"))
    assert (refused.returncode, "there is no store" in refused.stderr) == (1, True)
    with ServerProcess(tmp_path / "server") as server:
        done("send", "q", "x" * 10_000, "--count", "300", "--url", server.url)
        refused = holdfast("promote", str(server.data))
        assert refused.returncode == 1
        with CopyProcess(tmp_path / "copy", server.url, "--image-rate", "0.5"):
            eventually((tmp_path / "copy" / "image" / "data.mdb").exists)
    refused = holdfast("promote", str(tmp_path / "copy"))
    assert (refused.returncode, "is not whole yet" in refused.stderr) == (1, True)
    refused = holdfast("promote", str(tmp_path / "server"))
    assert (refused.returncode, "is no copy: it can be served as it is" in refused.stderr) == (1, True)


def test_it_follows_over_tls_as_a_user(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    users, log = str(tmp_path / "users"), tmp_path / "log"
    done("user", "add", users, "copier", text="secret\n")
    arguments = ("--tls-certificate", str(tmp_path / "server.crt"), "--tls-key", str(tmp_path / "server.key"))
    with ServerProcess(tmp_path / "server", *arguments, "--users", users) as server:
        address = f"127.0.0.1:{server.port}?tls_ca_file={tmp_path / 'server.crt'}"
        url = f"amqps://copier:secret@{address}"
        done("send", "q", "safe", "--url", url)
        for wrong in (f"amqps://copier:wrong@{address}", f"amqps://copier:secret@127.0.0.1:{server.port}"):
            with CopyProcess(tmp_path / "copy", wrong, log=log) as copy:
                eventually(lambda: "the copy is not up to date, and goes on trying" in log.read_text())
                assert copy.is_running
            assert ":wrong" not in log.read_text()
            log.write_text("")
        with CopyProcess(tmp_path / "copy", None, log=log, HOLDFAST_FOLLOW_URL=url) as copy:
            assert "secret" not in copy.said
            caught_up(url)
        assert "secret" not in log.read_text()
        server.stop()
    assert "secret" not in done("promote", str(tmp_path / "copy"), "--json")


def test_the_copies_are_shown(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server") as server:
        empty = holdfast("group", "status", "--url", server.url)
        assert (empty.returncode, empty.stdout) == (0, "")
        assert empty.stderr == "0 copies; the last commit is 0\n"
        with CopyProcess(tmp_path / "copy", server.url) as copy:
            caught_up(server.url)
            shown = holdfast("group", "status", "--url", server.url)
            heading, row = lines(shown.stdout)
            assert heading == ["copy", "commit", "commits behind", "complete as of", "asked", "image"]
            assert (row[0], row[2]) == ("copy", "0")
            assert shown.stderr.startswith("1 copy; the last commit is ")
            copy.stop()
            done("send", "q", "a", "--url", server.url)
            found = json.loads(done("group", "status", "--url", server.url, "--json"))
            (each,) = found["copies"]
            assert each["behind"] == found["lsn"] - each["lsn"] > 0
            assert each["behind_ms"] >= 0
            assert each["image"] is None


def test_what_is_given_to_follow_is_checked(tmp_path: Path) -> None:
    for url, error in (
        ("embedded:", "--follow takes the URL of a server: amqp://HOST:PORT"),
        ("http://here", "http"),
        ("", "URL"),
    ):
        refused = holdfast("serve", "--data", str(tmp_path / "copy"), "--follow", url)
        assert refused.returncode in (1, 2)
        assert error in refused.stderr
        assert "Traceback" not in refused.stderr
    for rate in ("0", "-1", "fast", "nan", "inf"):
        refused = holdfast("serve", "--data", str(tmp_path), "--follow", "amqp://here", "--image-rate", rate)
        assert (refused.returncode, "MiB a second, above 0" in refused.stderr) == (2, True)
    refused = holdfast("serve", "--data", str(tmp_path), "--group", "g", "--lease-seconds", "0")
    assert (refused.returncode, "0.1 seconds at least" in refused.stderr) == (2, True)
    (tmp_path / "file").write_text("")
    refused = holdfast("serve", "--data", str(tmp_path / "file"), "--follow", "amqp://here")
    assert (refused.returncode, "is a file" in refused.stderr, "Traceback" in refused.stderr) == (1, True, False)
    assert not (tmp_path / "copy").exists()


def test_a_copy_of_another_store_ends_with_an_error(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "one") as one:
        done("send", "q", "kept", "--url", one.url)
    log = tmp_path / "log"
    with ServerProcess(tmp_path / "two") as two, CopyProcess(tmp_path / "one", two.url, log=log) as copy:
        assert copy.wait() == 1
        assert "is no copy of the one that" in log.read_text()
        assert "Traceback" not in log.read_text()
    with ServerProcess(tmp_path / "one") as one:
        assert done("browse", "q", "--url", one.url) == "kept\n"


@pytest.mark.damages
def test_a_repaired_copy_gets_what_was_damaged_from_its_server(tmp_path: Path) -> None:
    path = tmp_path / "copy"
    with ServerProcess(tmp_path / "server") as server:
        done("send", "q", "one", "two", "three", "--url", server.url)
        with CopyProcess(path, server.url) as copy:
            caught_up(server.url)
            copy.stop()
        damage(path, "messages", next(iter(records(path)["messages"])))
        assert holdfast("check", str(path)).returncode == 1
        done("check", str(path), "--repair")
        with CopyProcess(path, server.url):
            caught_up(server.url)
        server.stop()
    assert differences(tmp_path / "server", path) == []
    assert check_store(path, EngineSettings()).is_sound


@pytest.mark.damages
def test_a_comparison_of_a_copy_with_damaged_pages_says_to_check_it(tmp_path: Path) -> None:
    path = tmp_path / "copy"
    with ServerProcess(tmp_path / "server") as server:
        done("send", "q", "one", "--url", server.url)
        with CopyProcess(path, server.url) as copy:
            caught_up(server.url)
            copy.stop()
        with (path / "data.mdb").open("r+b") as file:
            file.seek(2 * PAGESIZE)
            file.write(b"\xff" * ((path / "data.mdb").stat().st_size - 2 * PAGESIZE))
        found = holdfast("group", "verify", str(path), "--url", server.url)
    assert found.returncode == 1
    assert "MDB_" in found.stderr
    assert found.stderr.endswith(
        f"stop the server or program that has it open, and run: holdfast check {str(path)!r}\n"
    )


def test_the_record_of_a_group_is_shown_by_its_coordinator_which_has_to_be_named() -> None:
    refused = holdfast("group", "status", "--group", "orders")
    assert (refused.returncode, "--group needs --coordinator" in refused.stderr) == (1, True), refused.stderr
    refused = holdfast("group", "status", "--group", "orders", "--coordinator", "etcd://127.0.0.1:1")
    assert (refused.returncode, "etcd at http://127.0.0.1:1" in refused.stderr) == (1, True), refused.stderr


def test_a_group_is_dissolved_only_while_nobody_renews_its_record() -> None:
    node = NodeRecord("host:5672", 11)
    record = GroupRecord("unique", 1, "n1", frozenset({"n1"}), {"n1": node}, 1, "writer", 11, 1)
    stop = threading.Event()
    with closing(SmallEtcd()) as etcd:
        url = f"etcd://127.0.0.1:{etcd.port}"
        dissolve = ("group", "dissolve", "--group", "g", "--coordinator", url, "--lease-seconds", "0.5")
        refused = holdfast(*dissolve)
        assert (refused.returncode, "there is no group 'g'" in refused.stderr) == (1, True), refused.stderr
        with closing(EtcdCoordinator(access_of(url), "holdfast/groups/g", 5.0)) as coordinator:
            first = coordinator.swap(0, encoded(record))
            assert first is not None

            def renew(token: int | None) -> None:
                while token is not None and not stop.wait(0.1):
                    token = coordinator.swap(token, encoded(record))

            primary = threading.Thread(target=renew, args=(first,))
            primary.start()
            refused = holdfast(*dissolve)
            stop.set()
            primary.join()
            assert (refused.returncode, "has a primary, n1: stop its nodes" in refused.stderr) == (1, True), (
                refused.stderr
            )
            assert json.loads(done(*dissolve, "--json")) == {"in_sync": ["n1"]}
            assert coordinator.read().data == b""


@pytest.mark.damages
def test_a_copy_is_compared_with_its_server_while_both_are_written(tmp_path: Path) -> None:
    path = tmp_path / "copy"
    stop = threading.Event()
    with ServerProcess(tmp_path / "server") as server:

        def work() -> None:
            with (
                ConnectionFactory(server.url).create_connection() as connection,
                connection.create_session() as session,
            ):
                connection.start()
                producer = session.create_producer(session.create_queue("busy"))
                consumer = session.create_consumer(session.create_queue("busy"))
                while not stop.is_set():
                    producer.send_all([str(number) for number in range(10)])
                    consumer.receive(timeout=60)

        done("send", "q", "one", "two", "three", "--url", server.url)
        with CopyProcess(path, server.url):
            caught_up(server.url)
            worker = threading.Thread(target=work)
            worker.start()
            said = done("group", "verify", str(path), "--url", server.url)
            assert re.fullmatch(r"\d+ records compared, commit \d+; all equal\n", said)
            with beside(path, EngineSettings()) as snapshot, snapshot() as tables:
                damaged, _ = next(tables.items("messages"))
            damage(path, "messages", damaged)
            found = holdfast("group", "verify", str(path), "--url", server.url, "--json")
            stop.set()
            worker.join()
    assert found.returncode == 1
    assert json.loads(found.stdout)["differences"] == [{"table": "messages", "key": damaged.hex()}]
