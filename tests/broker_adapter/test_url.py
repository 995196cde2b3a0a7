"""Connection URLs: what they may say, and what is said when they do not."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker_adapter.errors import InvalidURLException
from broker_adapter.url import MAX_ADDRESSES, MAX_URL_LENGTH, AmqpURL, EmbeddedURL, FailoverURL, parse_url


def network(text: str) -> FailoverURL:
    url = parse_url(text)
    assert isinstance(url, FailoverURL)
    return url


def only(text: str) -> AmqpURL:
    (address,) = network(text).addresses
    return address


def test_an_embedded_engine_has_a_directory_or_none() -> None:
    durable = parse_url("embedded:./some%20data?max_queue_messages=7&prefetch_messages=3")
    assert isinstance(durable, EmbeddedURL)
    assert (durable.path, durable.engine.max_queue_messages, durable.client.prefetch_messages) == ("./some data", 7, 3)
    assert durable.engine_options == {"max_queue_messages"}
    memory = parse_url("embedded:")
    assert isinstance(memory, EmbeddedURL)
    assert memory.path is None


def test_a_network_address_has_its_parts() -> None:
    url = only("amqps://al%40ice:s%2Fecret@example.org:1234?idle_timeout_seconds=5")
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
    assert only(text).port == port


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


def test_a_failover_url_has_several_addresses_and_options_for_all_of_them() -> None:
    url = network(
        "failover:(amqp://a:1?idle_timeout_seconds=5, amqps://u:p@[::1]:2)"
        "?idle_timeout_seconds=7&prefetch_messages=3&cycle_count=4&randomize=true"
    )
    assert [str(each) for each in url.addresses] == ["amqp://a:1", "amqps://[::1]:2"]
    assert [each.amqp.idle_timeout_seconds for each in url.addresses] == [5, 7]
    assert [each.client.prefetch_messages for each in url.addresses] == [3, 3]
    assert (url.client.prefetch_messages, url.failover.cycle_count, url.failover.randomize) == (3, 4, True)
    assert (url.addresses[1].username, url.addresses[1].password) == ("u", "p")


def test_a_single_address_takes_failover_options() -> None:
    url = network("amqp://h?failover=nofailover&retries=2&connect_delay_seconds=0.5")
    assert url.failover.failover == "nofailover"
    assert (url.addresses[0].amqp.retries, url.addresses[0].amqp.connect_delay_seconds) == (2, 0.5)


def test_a_failover_url_has_only_so_many_addresses() -> None:
    def url(count: int) -> str:
        return f"failover:({','.join(f'amqp://h:{port}' for port in range(1, count + 1))})"

    assert len(network(url(MAX_ADDRESSES)).addresses) == MAX_ADDRESSES
    with pytest.raises(InvalidURLException, match="101 addresses are more than the limit of 100"):
        parse_url(url(MAX_ADDRESSES + 1))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("failover:amqp://a", "is not of the form failover:(URL,URL,...)"),
        ("failover:(amqp://a", "is not of the form failover:(URL,URL,...)"),
        ("failover:(amqp://a)x=1", "is not of the form failover:(URL,URL,...)"),
        ("failover:()", "neither amqp://... nor amqps://..."),
        ("failover:(amqp://a,)", "neither amqp://... nor amqps://..."),
        ("failover:(amqp://a,embedded:)", "neither amqp://... nor amqps://..."),
        ("failover:(amqp://a,amqp://a:5672)", "an address is given twice"),
        ("failover:(amqp://a,amqp://b)?failover=singlebroker", "failover=singlebroker has one address, not 2"),
        ("failover:(amqp://a?prefetch_messages=1)", "unknown option 'prefetch_messages'"),
        ("failover:(amqp://a)?colour=red", "unknown option 'colour'"),
        ("amqp://a?failover=sometimes", "is none of singlebroker, roundrobin, failover_exchange, nofailover"),
        ("amqp://a?reconnect_jitter=2", "above the greatest value"),
    ],
)
def test_what_is_wrong_with_a_failover_url_is_named(text: str, reason: str) -> None:
    with pytest.raises(InvalidURLException) as raised:
        parse_url(text)
    assert reason in raised.value.reason


def test_no_error_of_a_failover_url_has_a_password() -> None:
    for text in (
        "failover:(amqp://u:secret@a,x://u:secret@b)",
        "failover:(amqp://u:secret@a/p)",
        "failover:u:secret@x",
    ):
        with pytest.raises(InvalidURLException) as raised:
            parse_url(text)
        assert "secret" not in str(raised.value)


#: What a password may have that divides a URL.
_DIVIDING = st.text(st.sampled_from("/?#,;()[]@&=:%'\" |\uff1f\uff0f\uff20\u2100"), min_size=1, max_size=3)


@given(
    _DIVIDING, _DIVIDING, st.sampled_from(["amqp://{}", "amqps://{}?retries=3", "failover:({})", "failover:({},{})"])
)
@example("?", "?", "amqp://{}")
@example("?retries=", "x", "amqp://{}")
@example(",", "x", "failover:({})")
@example("/", "?", "amqp://{}")
@example("://", "x", "amqp://{}")
@example("\uff1f", "x", "amqp://{}")
@example("\u2100", "\uff20", "failover:({})")
def test_no_error_has_a_part_of_a_password_that_is_not_encoded(first: str, second: str, form: str) -> None:
    for begin in ("alice:", ""):
        one = f"{begin}alpha{first}gamma{second}omega@host:5672"
        text = form.format(*(f"amqp://{one}",) * 2) if "failover" in form else form.format(one)
        try:
            parse_url(text)
        except InvalidURLException as error:
            shown = str(error)
            assert not [part for part in ("alpha", "gamma", "omega") if part in shown], shown


def test_a_password_that_is_not_encoded_is_told_how_to_be() -> None:
    with pytest.raises(InvalidURLException, match="percent-encoded") as raised:
        parse_url("amqp://alice:pa?ss@host:5672")
    assert "'amqp://***@host:5672'" in str(raised.value)
    assert parse_url("amqp://alice:pa%3Fss@host:5672").addresses[0].password == "pa?ss"  # type: ignore[union-attr]
