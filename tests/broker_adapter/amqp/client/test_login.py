"""The login of a URL: whose credentials, and what they may be used for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.amqp.client.login import login_for
from broker_adapter.amqp.client.transport import AmqpTransport
from broker_adapter.amqp.sasl import ANONYMOUS, PLAIN, SASL_HEADER
from broker_adapter.errors import ConnectionLostException, InvalidURLException, JMSSecurityException
from broker_adapter.mechanisms import Trust
from broker_adapter.transport import Credentials
from broker_adapter.urls.url import FailoverURL, parse_url
from tests.broker_adapter.amqp.client.opened import WAIT, url_of
from tests.broker_adapter.amqp.sasl_pair import AnyName, offer, server, talk


def login(text: str, credentials: Credentials) -> Any:
    url = parse_url(text)
    assert isinstance(url, FailoverURL)
    return login_for(url.addresses[0], credentials)


@pytest.mark.parametrize(
    ("text", "credentials", "username"),
    [
        ("amqp://127.0.0.1", Credentials(), None),
        ("amqps://al:s3@127.0.0.1", Credentials(), "al"),
        ("amqps://al:s3@127.0.0.1", Credentials("bob", "x"), "bob"),
        ("amqps://a%40b:s%3A3@127.0.0.1", Credentials(), "a@b"),
        ("amqps://al@127.0.0.1", Credentials(None, "x"), "al"),
        ("amqps://al:s3@127.0.0.1", Credentials(None, "x"), "al"),
    ],
)
def test_credentials_come_from_the_caller_or_else_from_the_url(
    text: str, credentials: Credentials, username: str | None
) -> None:
    there = server(users=None)
    talk(login(text, credentials), there)

    assert there.done
    assert there.username == username


@pytest.mark.parametrize(
    ("text", "credentials", "reason"),
    [
        ("amqp://al@127.0.0.1", Credentials(), "a user name 'al' without a password; give both"),
        ("amqp://127.0.0.1", Credentials("al"), "a user name 'al' without a password"),
        ("amqp://al:s3@127.0.0.1", Credentials("bob"), "a user name 'bob' without a password"),
        ("amqp://127.0.0.1", Credentials(None, "s3"), "a password without a user name"),
        ("amqps://h?sasl_mechanisms=EXTERNAL", Credentials(), "none of the SASL mechanisms EXTERNAL can be used"),
    ],
)
def test_credentials_that_cannot_be_used_are_refused(text: str, credentials: Credentials, reason: str) -> None:
    with pytest.raises(JMSSecurityException, match=reason):
        login(text, credentials)


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("amqp://al:s3cret@example", False),
        ("amqp://al:s3cret@example?allow_plain_without_tls=true", True),
        ("amqp://al:s3cret@127.0.0.1", False),
        ("amqp://al:s3cret@localhost", False),
        ("amqp://al:s3cret@127.0.0.1?allow_plain_without_tls=true", True),
        ("amqps://al:s3cret@example", True),
    ],
)
def test_a_plain_password_leaves_only_over_tls_or_where_an_option_allows_it(text: str, sent: bool) -> None:
    here = login(text, Credentials())
    here.receive(offer(PLAIN, ANONYMOUS))

    assert (b"s3cret" in here.pending_output()) is sent
    if not sent:
        assert isinstance(here.error, JMSSecurityException)
        assert "use amqps://, or set allow_plain_without_tls=true" in here.error.reason


def test_after_scram_a_broker_that_offers_less_gets_nothing_and_is_not_taken_for_the_same() -> None:
    url = parse_url("amqps://alice:correct%20horse@example?sasl_mechanisms=SCRAM-SHA-256,PLAIN,ANONYMOUS")
    assert isinstance(url, FailoverURL)
    trust = Trust(url.addresses)
    here = login_for(url.addresses[0], Credentials(), trust)
    talk(here, server())
    assert here.done
    for offered in ((PLAIN,), (ANONYMOUS,), (PLAIN, ANONYMOUS)):
        again = login_for(url.addresses[0], Credentials(), trust)
        again.receive(offer(*offered))
        assert again.pending_output() == SASL_HEADER
        assert isinstance(again.error, ConnectionLostException), "an attempt that has failed; others follow"
        assert "weaker than the login of this connection before" in again.error.reason
    unproven = login_for(url.addresses[0], Credentials(), trust)
    talk(unproven, server(users=AnyName("another password")))
    assert not unproven.done


def test_a_login_that_has_failed_is_none_to_go_by() -> None:
    url = parse_url("amqps://alice:wrong@example")
    assert isinstance(url, FailoverURL)
    trust = Trust(url.addresses)
    here = login_for(url.addresses[0], Credentials(), trust)
    talk(here, server())
    assert here.error is not None
    again = login_for(url.addresses[0], Credentials(), trust)
    again.receive(offer(PLAIN))
    assert b"wrong" in again.pending_output()


def test_tls_files_that_cannot_be_read_are_told_before_anything_is_sent() -> None:
    url = url_of(1, "?tls_ca_file=/no/such/file", "amqps")

    with pytest.raises(
        InvalidURLException, match=r"TLS files .* tls_ca_file='/no/such/file' cannot be read: No such file"
    ):
        AmqpTransport(url).open(Credentials(), lambda _event: None, WAIT)


def test_tls_files_that_cannot_be_used_are_told_with_their_option(certificate: Path, tmp_path: Path) -> None:
    encrypted = tmp_path / "encrypted.key"
    command = f"openssl genpkey -algorithm RSA -aes256 -pass pass:abc -out {encrypted}"
    subprocess.run(command.split(), check=True, capture_output=True)
    for options, reason in (
        (f"tls_ca_file={__file__}", f"tls_ca_file='{__file__}' has no certificate"),
        (f"tls_certificate_file={certificate}.crt", f"tls_certificate_file='{certificate}.crt': "),
        (f"tls_certificate_file={certificate}&tls_key_file=nokey", "tls_key_file='nokey' cannot be read"),
        (f"tls_certificate_file={certificate}&tls_key_file={encrypted}", "the key has a pass phrase"),
        (f"tls_certificate_file={certificate}&tls_key_file={__file__}", f"with tls_key_file='{__file__}': "),
    ):
        with pytest.raises(InvalidURLException, match=re.escape(reason)):
            AmqpTransport(url_of(1, f"?{options}", "amqps")).open(Credentials(), lambda _event: None, WAIT)
