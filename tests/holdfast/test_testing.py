"""The plugin of pytest, as the tests of an application use it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parent.parent.parent
SECONDS = 300


@pytest.fixture
def application(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return pytester


def run(application: pytest.Pytester, tests: str, **outcomes: int) -> pytest.RunResult:
    """Run tests in a process of their own, in their order."""
    application.makepyfile(tests)
    result = application.runpytest_subprocess("-p", "holdfast.testing", "-p", "no:randomly", timeout=SECONDS)
    result.assert_outcomes(**outcomes)
    return result


def test_pytest_finds_the_plugin_by_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # Under the name of its module: else one that is given by -p as well would be registered twice.
    assert project["entry-points"]["pytest11"] == {"holdfast.testing": "holdfast.testing"}


def test_importing_it_loads_nothing_else_of_holdfast() -> None:
    program = (
        "import sys, holdfast.testing\n"
        "ours = ('ack_modes', 'broker_adapter', 'holdfast', 'lmdb', 'msgpack', 'proton', 'sdk')\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ours))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout == "['holdfast', 'holdfast.testing']\n"


def test_each_test_has_an_engine_of_its_own_which_is_closed_behind_it(application: pytest.Pytester) -> None:
    run(
        application,
        """
        import pytest
        from holdfast import ConnectionFactory, JMSException

        left = []

        def send(url):
            connection = ConnectionFactory(url).create_connection()
            session = connection.create_session()
            session.create_producer(session.create_queue("q")).send("x")
            return connection

        def test_messages_outlive_the_connections_of_a_test(holdfast_url, wait_for_messages):
            for _ in range(2):
                send(holdfast_url).close()
            assert [str(each) for each in wait_for_messages("q", 2)] == ["x", "x"]

        def test_first(holdfast_url):
            connection = send(holdfast_url)
            connection.start()
            session = connection.create_session()
            left.append((holdfast_url, connection, session.create_consumer(session.create_queue("other"))))

        def test_second(holdfast_url, holdfast_connection, wait_for_messages):
            wait_for_messages("q", 0)
            (url, connection, consumer), = left
            assert url != holdfast_url
            with pytest.raises(JMSException, match="the engine is closed"):
                consumer.receive()
            connection.close()
            with ConnectionFactory(url).create_connection() as again:
                assert again.statistics().queues == holdfast_connection.statistics().queues  # there is nothing
        """,
        passed=3,
    )


def test_waiting_for_messages_waits_and_says_what_is_there(application: pytest.Pytester) -> None:
    result = run(
        application,
        """
        import threading
        from holdfast import AcknowledgeMode

        def producer(connection):
            session = connection.create_session()
            return session.create_producer(session.create_queue("q"))

        def test_it_waits(holdfast_connection, wait_for_messages):
            sending = threading.Timer(0.2, lambda: producer(holdfast_connection).send_all(["a", "b"]))
            sending.start()
            assert [each.body for each in wait_for_messages("q", 2)] == ["a", "b"]
            sending.join()

        def test_what_a_consumer_has_counts(holdfast_connection, wait_for_messages):
            producer(holdfast_connection).send("a")
            session = holdfast_connection.create_session(AcknowledgeMode.CLIENT)
            message = session.create_consumer(session.create_queue("q")).receive(60)
            assert wait_for_messages("q", 1) == []
            message.acknowledge()
            assert wait_for_messages("q", 0) == []

        def test_too_few(holdfast_connection, wait_for_messages):
            producer(holdfast_connection).send({"item": "book"})
            wait_for_messages("q", 2, 0.1)

        def test_too_many(holdfast_connection, wait_for_messages):
            producer(holdfast_connection).send_all(["a", "b"])
            wait_for_messages("q", 1, timeout=0.1)
        """,
        passed=2,
        failed=2,
    )
    result.stdout.fnmatch_lines(["*the queue 'q' has 1 message after 0.1 s, not 2:", "*  {'item': 'book'}"])
    result.stdout.fnmatch_lines(["*the queue 'q' has 2 messages after 0.1 s, not 1:", "*  'a'", "*  'b'"])


@pytest.mark.slow
@pytest.mark.crash
def test_the_server_is_one_for_the_session_and_can_be_killed(application: pytest.Pytester) -> None:
    result = run(
        application,
        """
        import pytest
        from holdfast import ConnectionFactory, ConnectionLostException
        from holdfast.testing import HoldfastServer

        urls = []

        def test_first(holdfast_server):
            urls.append(holdfast_server.url)
            with ConnectionFactory(holdfast_server.url).create_connection() as connection:
                connection.create_sender(connection.create_session().create_queue("q")).send("x")
            holdfast_server.kill()
            holdfast_server.kill()
            with pytest.raises(ConnectionLostException):
                ConnectionFactory(holdfast_server.url).create_connection()
            holdfast_server.restart()

        def test_second(holdfast_server, wait_for_messages):
            assert urls == [holdfast_server.url]
            with ConnectionFactory(holdfast_server.url).create_connection() as connection:
                assert [each.body for each in wait_for_messages("q", 1, connection=connection)] == ["x"]

        def test_one_that_does_not_start_says_why(tmp_path):
            (tmp_path / "data").write_text("no directory")
            with pytest.raises(RuntimeError, match="holdfast serve has not started.*data"):
                HoldfastServer(tmp_path)
        """,
        passed=3,
    )
    assert result.ret == 0
