"""The coordinator on etcd, against a small server; with a real etcd: ``tests/interop/test_etcd.py``."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker_adapter.errors import (
    ConnectionLostException,
    JMSException,
    JMSSecurityException,
    OperationTimedOutException,
    ProtocolException,
)
from broker_adapter.group.coordinators import Found
from broker_adapter.group.etcd import Access, EtcdCoordinator, access_of
from tests.broker_adapter.group.small_etcd import SmallEtcd
from tests.broker_adapter.server.served import server_context

#: For answers that come, and for those that do not.
LONG, SHORT = 60.0, 0.2

Making = Callable[..., EtcdCoordinator]


@pytest.fixture
def etcd() -> Iterator[SmallEtcd]:
    with closing(SmallEtcd()) as etcd:
        yield etcd


@pytest.fixture
def made(etcd: SmallEtcd) -> Iterator[Making]:
    """Makes coordinators, which are closed at the end."""
    coordinators: list[EtcdCoordinator] = []

    def make(*endpoints: str, seconds: float = LONG, user: str = "", password: str = "") -> EtcdCoordinator:
        coordinators.append(EtcdCoordinator(Access(endpoints or (etcd.url,), user, password), "group/g", seconds))
        return coordinators[-1]

    yield make
    for each in coordinators:
        each.close()


def nowhere() -> str:
    """An endpoint where nothing listens."""
    etcd = SmallEtcd()
    etcd.close()
    return etcd.url


def test_what_is_swapped_in_is_read(etcd: SmallEtcd, made: Making) -> None:
    coordinator = made()
    assert coordinator.read() == Found(0, b"")
    token = coordinator.swap(0, b"one \xff")
    assert token
    assert coordinator.read() == Found(token, b"one \xff")
    assert etcd.value("group/g") == b"one \xff"
    assert coordinator.swap(token, b"two") == token + 1
    assert coordinator.read() == made().read() == Found(token + 1, b"two")


def test_a_swap_of_another_value_than_was_read_loses(etcd: SmallEtcd, made: Making) -> None:
    one, other = made(), made()
    token = one.swap(0, b"one")
    assert token
    assert other.swap(0, b"other") is None
    assert other.swap(token, b"other") == token + 1
    assert one.swap(token, b"again") is None
    assert etcd.value("group/g") == b"other"


def test_one_connection_is_kept(etcd: SmallEtcd, made: Making) -> None:
    coordinator = made()
    for _ in range(20):
        coordinator.swap(coordinator.read().token, b"x")
    assert etcd.connections == 1


def test_an_answer_that_comes_too_late_is_none_and_the_next_one_is_its_own(etcd: SmallEtcd, made: Making) -> None:
    coordinator = made(seconds=SHORT)
    etcd.waits = threading.Event()
    with pytest.raises(OperationTimedOutException, match=f"etcd at {etcd.url} has not answered in time"):
        coordinator.swap(0, b"late")
    with pytest.raises(OperationTimedOutException):
        coordinator.read()
    waits, etcd.waits = etcd.waits, None
    waits.set()
    coordinator = made()
    while coordinator.read().data != b"late":  # it is carried out
        time.sleep(0.01)
    assert len([path for path, _ in etcd.requests if path == "/v3/kv/txn"]) == 1


def test_an_answer_that_is_lost_after_the_swap_leaves_it_open(etcd: SmallEtcd, made: Making) -> None:
    coordinator = made()
    etcd.loses = True
    with pytest.raises(ConnectionLostException, match=f"etcd at {etcd.url} cannot be reached"):
        coordinator.swap(0, b"lost")
    etcd.loses = False
    assert coordinator.read().data == b"lost"
    assert len([path for path, _ in etcd.requests if path == "/v3/kv/txn"]) == 1, "it was sent once"


def test_a_swap_that_is_carried_out_twice_has_won_or_says_nothing(etcd: SmallEtcd, made: Making) -> None:
    coordinator = made()
    etcd.repeats = True
    assert coordinator.swap(0, b"twice") is None
    found = coordinator.read()
    assert found.data == b"twice"
    assert etcd.revision == found.token, "once"


@pytest.mark.parametrize(
    ("status", "data", "error", "reason"),
    [
        (200, b"", ProtocolException, "is no etcd: status 200"),
        (200, b"[]", ProtocolException, "is no etcd: status 200"),
        (200, b"<html>", ProtocolException, "is no etcd: status 200"),
        (200, b"[" * 10_000, ProtocolException, "is no etcd"),
        (404, b"Not Found", ProtocolException, "is no etcd: status 404"),
        (404, b'{"error": 5}', ProtocolException, "is no etcd: status 404"),
        (302, b'{"error": "elsewhere"}', ProtocolException, "refuses the request: elsewhere"),
        (400, b'{"error": "etcdserver: bad"}', ProtocolException, "refuses the request: etcdserver: bad"),
        (403, b'{"error": "etcdserver: permission denied"}', JMSSecurityException, "permission denied"),
        (503, b'{"error": "etcdserver: no leader"}', ConnectionLostException, "cannot answer: etcdserver: no leader"),
        (200, b"{" + b" " * 100_000 + b"}", ProtocolException, "is no etcd"),
    ],
)
def test_other_answers_are_clear_errors(
    etcd: SmallEtcd, made: Making, status: int, data: bytes, error: type[JMSException], reason: str
) -> None:
    coordinator = made()
    etcd.says = status, data
    for call in (coordinator.read, lambda: coordinator.swap(0, b"x")):
        with pytest.raises(error, match=reason):
            call()
    etcd.says = None
    assert coordinator.read().data == b"x"


@pytest.mark.parametrize(
    "answer",
    [
        {"kvs": 5},
        {"kvs": [5]},
        {"kvs": {"a": 1}},
        {"kvs": [{"value": "eA=="}]},
        {"kvs": [{"value": "eA==", "mod_revision": "x"}]},
        {"kvs": [{"value": "eA==", "mod_revision": "0"}]},
        {"kvs": [{"value": "?", "mod_revision": "5"}]},
        {"kvs": [{"value": 5, "mod_revision": "5"}]},
    ],
)
def test_an_answer_of_another_shape_is_none(etcd: SmallEtcd, made: Making, answer: object) -> None:
    etcd.says = 200, json.dumps(answer).encode()
    with pytest.raises(ProtocolException, match="etcd has given an answer that is none"):
        made().read()


@pytest.mark.parametrize(
    "answer", [{"succeeded": True}, {"succeeded": True, "header": []}, {"succeeded": True, "header": {"revision": "-"}}]
)
def test_a_swap_that_has_won_needs_its_revision(etcd: SmallEtcd, made: Making, answer: object) -> None:
    etcd.says = 200, json.dumps(answer).encode()
    with pytest.raises(ProtocolException, match="etcd has given an answer that is none"):
        made().swap(0, b"x")


def test_the_next_endpoint_is_asked_where_one_is_away(etcd: SmallEtcd, made: Making) -> None:
    coordinator = made(nowhere(), etcd.url)
    assert coordinator.swap(0, b"x"), "nothing was sent to the first one"
    assert coordinator.read().data == b"x"


def test_a_read_but_no_swap_goes_on_to_the_next_endpoint_where_an_answer_is_lost(etcd: SmallEtcd, made: Making) -> None:
    with closing(SmallEtcd()) as first:
        coordinator = made(first.url, etcd.url)
        first.loses = True
        assert coordinator.read() == Found(0, b"")
        coordinator = made(first.url, etcd.url)
        with pytest.raises(ConnectionLostException):
            coordinator.swap(0, b"x")
        assert etcd.value("group/g") is None
        assert coordinator.read() == Found(0, b""), "of the next one"


def test_a_read_waits_for_no_endpoint_for_all_its_time(etcd: SmallEtcd, made: Making) -> None:
    with closing(SmallEtcd()) as first:
        first.waits = threading.Event()
        assert made(first.url, etcd.url, seconds=4.0).read() == Found(0, b"")


def test_where_nothing_answers_the_error_says_so(made: Making) -> None:
    coordinator = made(nowhere(), nowhere())
    for call in (coordinator.read, lambda: coordinator.swap(0, b"x")):
        with pytest.raises(ConnectionLostException, match=r"etcd at http://127\.0\.0\.1:\d+ cannot be reached"):
            call()


def test_a_user_logs_in_once_and_again_when_the_login_is_not_valid_any_more(etcd: SmallEtcd, made: Making) -> None:
    etcd.users = {"u": "pw"}
    coordinator = made(user="u", password="pw")
    token = coordinator.swap(0, b"x")
    assert token
    assert coordinator.read().data == b"x"
    etcd.tokens.clear()
    assert coordinator.swap(token, b"y") == token + 1
    logins = [path for path, _ in etcd.requests if path == "/v3/auth/authenticate"]
    assert len(logins) == 2


def test_a_refused_login_is_a_clear_error_without_the_password(etcd: SmallEtcd, made: Making) -> None:
    with pytest.raises(JMSSecurityException, match="authentication is not enabled"):
        made(user="u", password="secret").read()
    etcd.users = {"u": "pw"}
    with pytest.raises(JMSSecurityException, match="invalid user ID or password") as raised:
        made(user="u", password="secret").read()
    assert "secret" not in str(raised.value)
    assert "secret" not in repr(made(user="u", password="secret"))
    with pytest.raises(JMSSecurityException, match="user name is empty"):
        made().swap(0, b"x")


def test_with_tls_the_server_is_verified(tmp_path: Path) -> None:
    with closing(SmallEtcd(server_context(tmp_path))) as etcd:
        access = Access([etcd.url], ca_file=str(tmp_path / "server.crt"))
        with closing(EtcdCoordinator(access, "group/g", LONG)) as coordinator:
            assert coordinator.swap(0, b"x")
            assert coordinator.read().data == b"x"
        for ca_file, reason in ((None, "CERTIFICATE_VERIFY_FAILED"), (str(tmp_path / "none.crt"), "No such file")):
            with (
                closing(EtcdCoordinator(Access([etcd.url], ca_file=ca_file), "group/g", LONG)) as coordinator,
                pytest.raises(ConnectionLostException, match=reason),
            ):
                coordinator.read()


def test_a_url_says_where_etcd_is_and_who_logs_in() -> None:
    assert access_of("etcd://one") == Access(["http://one:2379"])
    assert access_of("etcd://u%40x:p%3Aw@one:1,[::1]:2,two/") == Access(
        ["http://one:1", "http://[::1]:2", "http://two:2379"], "u@x", "p:w"
    )
    assert access_of("etcds://one?ca_file=/ca&cert_file=c&key_file=k") == Access(
        ["https://one:2379"], "", "", "/ca", "c", "k"
    )


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://one", "the URL of an etcd is etcd://"),
        ("etcd://one/path", "the URL of an etcd is etcd://"),
        ("etcd://", "no host and port in ''"),
        ("etcd://one,,two", "no host and port in ''"),
        ("etcd://one:x", "no host and port in 'one:x'"),
        ("etcd://one:99999", "no host and port in 'one:99999'"),
        ("etcd://one?ca_file=x", "the option 'ca_file', which is none, or none without TLS"),
        ("etcds://one?colour=red", "the option 'colour'"),
    ],
)
def test_other_urls_are_refused(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        access_of(url)
