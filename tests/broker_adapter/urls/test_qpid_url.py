"""Connection URLs in the form of Qpid, which the seed on failover points to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.errors import InvalidURLException
from broker_adapter.urls.url import FailoverURL, parse_url

WHOLE = (
    "amqp://user:pass%40word@clientid/vhost"
    "?brokerlist='tcp://h1:5672?retries='5'&connectdelay='1000';tcp://h2'&failover='roundrobin?cyclecount='2''"
)


def parsed(text: str) -> FailoverURL:
    url = parse_url(text)
    assert isinstance(url, FailoverURL)
    return url


def test_every_part_of_the_form_has_its_counterpart() -> None:
    url = parsed(WHOLE)
    first, second = url.addresses
    assert (str(first), str(second)) == ("amqp://h1:5672", "amqp://h2:5672")
    assert (first.amqp.retries, first.amqp.connect_delay_seconds) == (5, 1.0)
    assert (second.amqp.retries, second.amqp.connect_delay_seconds) == (None, 0.0)
    assert url.client_id == "clientid"
    assert {(each.username, each.password, each.amqp.vhost) for each in url.addresses} == {
        ("user", "pass@word", "vhost")
    }
    assert (url.failover.failover, url.failover.cycle_count) == ("roundrobin", 2)


def test_the_options_of_brokers_and_connection_are_translated() -> None:
    url = parsed(
        "amqp://guest:guest@/?maxprefetch='7'&failover='nofailover'"
        "&brokerlist='tcp://h:1?ssl='true'&connecttimeout='2500'&heartbeat='9'&sasl_mechs='PLAIN SCRAM-SHA-256''"
    )
    (address,) = url.addresses
    assert str(address) == "amqps://h:1"
    assert address.client.connect_timeout_seconds == 2.5
    assert (address.amqp.idle_timeout_seconds, address.amqp.sasl_mechanisms) == (9, "PLAIN,SCRAM-SHA-256")
    assert (url.client.prefetch_messages, url.failover.failover, url.client_id) == (7, "nofailover", None)
    assert address.amqp.vhost is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("amqp://c/v?brokerlist='tcp://h", "the quotes in the connection URL do not match"),
        ("amqp://c/v?brokerlist=tcp://h", "is not of the form name='value'"),
        ("amqp://c/v?brokerlist='vm://:1'", "is not of the form tcp://HOST:PORT"),
        ("amqp://c/v?brokerlist='h:1'", "is not of the form tcp://HOST:PORT"),
        ("amqp://c/v?brokerlist='tcp://h?colour='red''", "unknown option 'colour' of broker tcp://h; the options here"),
        ("amqp://c/v?brokerlist='tcp://h'&sync_ack='true'", "unknown option 'sync_ack' of a Qpid connection URL"),
        ("amqp://c/v?brokerlist='tcp://h'&failover='roundrobin?x='1''", "unknown option 'x' of failover method"),
        ("amqp://c/v?brokerlist='tcp://h'&failover='x'", "is none of singlebroker"),
        (
            "amqp://c/v?brokerlist='tcp://h?connectdelay='soon''",
            "connectdelay='soon' of broker tcp://h is not a number",
        ),
        ("amqp://c/v?brokerlist='tcp://h?ssl='perhaps''", "is neither 'true' nor 'false'"),
        ("amqp://c/v?brokerlist='tcp://h'&brokerlist='tcp://i'", "is given twice"),
        ("amqp://c/v?brokerlist=''", "brokerlist is empty"),
    ],
)
def test_what_is_wrong_is_named(text: str, reason: str) -> None:
    with pytest.raises(InvalidURLException) as raised:
        parse_url(text)
    assert reason in raised.value.reason


@given(st.text(alphabet="abt=&;?'/:@,1 ", max_size=60))
def test_anything_else_is_an_error_of_its_own_type(text: str) -> None:
    try:
        parse_url(f"amqp://c/v?brokerlist={text}")
    except InvalidURLException:
        pass
