"""Connection URLs: what they may say, and what is said when they do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.errors import InvalidURLException
from broker_adapter.url import MAX_URL_LENGTH, AmqpURL, EmbeddedURL, parse_url


def test_an_embedded_engine_has_a_directory_or_none() -> None:
    durable = parse_url("embedded:./some%20data?max_queue_messages=7&prefetch_messages=3")
    assert isinstance(durable, EmbeddedURL)
    assert (durable.path, durable.engine.max_queue_messages, durable.client.prefetch_messages) == ("./some data", 7, 3)
    assert durable.engine_options == {"max_queue_messages"}
    memory = parse_url("embedded:")
    assert isinstance(memory, EmbeddedURL)
    assert memory.path is None


def test_a_network_address_has_its_parts() -> None:
    url = parse_url("amqps://al%40ice:s%2Fecret@example.org:1234?idle_timeout_seconds=5")
    assert isinstance(url, AmqpURL)
    assert (url.host, url.port, url.tls, url.username, url.password) == (
        "example.org",
        1234,
        True,
        "al@ice",
        "s/ecret",
    )
    assert url.amqp.idle_timeout_seconds == 5
    assert "s/ecret" not in repr(url)


@pytest.mark.parametrize(("text", "port"), [("amqp://h", 5672), ("amqps://h", 5671), ("amqp://[::1]:7/", 7)])
def test_ports_have_their_defaults(text: str, port: int) -> None:
    url = parse_url(text)
    assert isinstance(url, AmqpURL)
    assert url.port == port


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a string of the form embedded:PATH"),
        (5, "is not a string of the form"),
        ("tcp://h", "has none of the forms"),
        ("localhost:5672", "has none of the forms"),
        ("amqp://", "names no host"),
        ("amqp://h:99999", "amqp"),
        ("amqp://h/path", "has a path"),
        ("amqp://h?x=1", "unknown option 'x'; the options here are prefetch_messages, "),
        ("amqp://h?max_queue_messages=1", "unknown option 'max_queue_messages'"),
        ("embedded:?idle_timeout_seconds=1", "unknown option 'idle_timeout_seconds'"),
        ("embedded:?prefetch_messages=1&prefetch_messages=2", "given twice"),
        ("embedded:?prefetch_messages", "not of the form name=value"),
        ("embedded:?prefetch_messages=many", "prefetch_messages='many' is not a number"),
        ("embedded:?prefetch_messages=-1", "below the least value"),
        ("embedded:?prefetch_messages=99999999", "above the greatest value"),
        ("embedded:?send_timeout_seconds=nan", "not a number"),
        ("amqp://h?envelope=maybe", "neither true nor false"),
    ],
)
def test_what_is_wrong_is_named(text: str, reason: str) -> None:
    with pytest.raises(InvalidURLException) as raised:
        parse_url(text)
    assert reason in raised.value.reason


def test_a_password_is_not_in_the_error() -> None:
    with pytest.raises(InvalidURLException) as raised:
        parse_url("tcp://alice:secret@host")
    assert "secret" not in str(raised.value)
    with pytest.raises(InvalidURLException) as raised:
        parse_url("amqp://alice:secret@host/path")
    assert "secret" not in str(raised.value)


def test_a_url_has_a_longest_length() -> None:
    parse_url("embedded:" + "x" * (MAX_URL_LENGTH - 9))
    with pytest.raises(InvalidURLException, match="longer than the limit"):
        parse_url("embedded:" + "x" * (MAX_URL_LENGTH - 8))


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_the_right_error(text: str) -> None:
    for scheme in ("", "embedded:", "amqp://"):
        try:
            parse_url(scheme + text)
        except InvalidURLException:
            continue
