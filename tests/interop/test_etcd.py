"""The coordinator on a real etcd, of Debian's package: a swap wins once, whoever asks, over kills and logins."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.errors import ConnectionLostException, JMSException, JMSSecurityException
from broker_adapter.group.coordinators import Found
from broker_adapter.group.etcd import Access, EtcdCoordinator
from tests.interop import install
from tests.interop.brokers.brokers import Process, free_port
from tests.interop.conftest import installed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
_SECONDS = 10.0


class Etcd:
    """One etcd that runs."""

    def __init__(self, place: Path, *options: str, scheme: str = "http") -> None:
        client, peer = (free_port() for _ in range(2))
        self.url = f"{scheme}://localhost:{client}"
        peers = f"http://127.0.0.1:{peer}"
        command = [
            *(str(installed(install.etcd)), "--data-dir", str(place), *options),
            *("--listen-client-urls", f"{scheme}://127.0.0.1:{client}", "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        ]
        self.process = Process(command, {}, "ready to serve client requests")

    def close(self) -> None:
        self.process.stop()

    def ask(self, path: str, **body: Any) -> None:
        """As its administrator."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.status == 200


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with closing(Etcd(tmp_path / "etcd")) as etcd:
        yield etcd


def coordinator_of(etcd: Etcd, *login: str) -> EtcdCoordinator:
    return EtcdCoordinator(Access([etcd.url], *login), "holdfast/g", _SECONDS)


def test_a_swap_wins_where_the_value_is_the_one_that_was_read(etcd: Etcd) -> None:
    with closing(coordinator_of(etcd)) as one, closing(coordinator_of(etcd)) as other:
        assert one.read() == Found(0, b"")
        token = one.swap(0, b"one \xff")
        assert token
        assert other.swap(0, b"other") is None
        assert other.read() == Found(token, b"one \xff")
        second = other.swap(token, b"x" * 4096)
        assert second
        assert one.swap(token, b"again") is None
        assert one.read() == Found(second, b"x" * 4096)


def test_of_many_swaps_of_one_value_one_wins(etcd: Etcd) -> None:
    coordinators = [coordinator_of(etcd) for _ in range(4)]
    token = 0
    with ThreadPoolExecutor(len(coordinators)) as pool:
        for turn in range(50):
            won = [*pool.map(lambda each, token=token, turn=turn: each.swap(token, b"%d" % turn), coordinators)]
            [token] = [each for each in won if each is not None]
    for each in coordinators:
        each.close()


def test_after_a_kill_it_has_what_it_has_answered(etcd: Etcd) -> None:
    with closing(coordinator_of(etcd)) as coordinator:
        token = coordinator.swap(0, b"one")
        assert token
        etcd.process.stop()
        for call in (coordinator.read, lambda: coordinator.swap(token, b"two")):
            with pytest.raises(ConnectionLostException):
                call()
        etcd.process = etcd.process.started_again()
        assert coordinator.read() == Found(token, b"one")
        assert coordinator.swap(token, b"two")


def test_a_user_logs_in_and_again_after_a_restart_and_a_change_of_rights(etcd: Etcd) -> None:
    for name in ("root", "holdfast", "other"):
        etcd.ask("/v3/auth/user/add", name=name, password=f"pw of {name}")
    etcd.ask("/v3/auth/user/grant", user="root", role="root")
    etcd.ask("/v3/auth/role/add", name="group")
    allowed = {"permType": "READWRITE", "key": "aG9sZGZhc3Qv", "range_end": "aG9sZGZhc3Qw"}  # holdfast/ to holdfast0
    etcd.ask("/v3/auth/role/grant", name="group", perm=allowed)
    etcd.ask("/v3/auth/user/grant", user="holdfast", role="group")
    etcd.ask("/v3/auth/enable")
    with closing(coordinator_of(etcd, "holdfast", "pw of holdfast")) as coordinator:
        token = coordinator.swap(0, b"one")
        assert token
        etcd.process.stop()
        etcd.process = etcd.process.started_again()
        assert coordinator.read() == Found(token, b"one"), "its token was of the process before"
        assert coordinator.swap(token, b"two")
    for login, reason in (
        ((), "user name is empty"),
        (("holdfast", "wrong"), "invalid user ID or password"),
        (("nobody", "x"), "invalid user ID or password"),
        (("other", "pw of other"), "permission denied"),
    ):
        with closing(coordinator_of(etcd, *login)) as coordinator, pytest.raises(JMSSecurityException, match=reason):
            coordinator.read()


def test_with_tls_both_ends_show_certificates(tmp_path: Path) -> None:
    certificate, key = tmp_path / "both.crt", tmp_path / "both.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    options = ("--cert-file", str(certificate), "--key-file", str(key))
    asking = ("--client-cert-auth", "--trusted-ca-file", str(certificate))
    with closing(Etcd(tmp_path / "etcd", *options, *asking, scheme="https")) as etcd:
        access = Access([etcd.url], ca_file=str(certificate), cert_file=str(certificate), key_file=str(key))
        with closing(EtcdCoordinator(access, "holdfast/g", _SECONDS)) as coordinator:
            assert coordinator.swap(0, b"one")
            assert coordinator.read().data == b"one"
        for wrong in (access._replace(cert_file=None, key_file=None), access._replace(ca_file=None)):
            with closing(EtcdCoordinator(wrong, "holdfast/g", _SECONDS)) as coordinator, pytest.raises(JMSException):
                coordinator.read()
