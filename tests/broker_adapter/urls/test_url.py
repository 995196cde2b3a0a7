"""Connection URLs: what they may say, and what is said when they do not."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_adapter.errors import InvalidURLException
from broker_adapter.urls.url import MAX_ADDRESSES, MAX_URL_LENGTH, AmqpURL, EmbeddedURL, FailoverURL, masked, parse_url


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
    assert (memory.path, memory.memory) == (None, None)
    named = parse_url("embedded:?memory=some%20shop&prefetch_messages=3")
    assert isinstance(named, EmbeddedURL)
    assert (named.path, named.memory, named.engine_options) == (None, "some shop", frozenset())
    configured = parse_url("embedded:data?config=a%20b.toml")
    assert isinstance(configured, EmbeddedURL)
    assert (configured.path, configured.config) == ("data", "a b.toml")


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
        ("amqp://h?prefech_messages=1", "'prefech_messages'; the most similar one is 'prefetch_messages'; the options"),
        ("amqp://h?max_queue_messages=1", "'max_queue_messages' is an option of the engine"),
        ("amqp://h?client_id=desk-7", "'client_id' is no option: it is an argument of create_connection()"),
        ("embedded:?durable_timeout=60", "'durable_timeout' is no option: it is an argument of create_connection()"),
        ("embedded:?idle_timeout_seconds=1", "unknown option 'idle_timeout_seconds'"),
        ("embedded:./data?memory=shop", "memory='shop' names an engine in memory, and './data' is a directory"),
        ("amqp://h?memory=shop", "'memory' is an option of embedded: URLs"),
        ("amqp://h?config=shop.toml", "'config' is an option of embedded: URLs"),
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


#: How an address may begin, as people write it.
_BEGINNINGS = st.tuples(
    st.sampled_from(["", " ", "\t", "\n ", "\u3000"]),
    st.sampled_from(["amqp:", "amqps:", "AMQP:", "Amqps:", "tcp:", "nio+ssl:", "failover:", ""]),
    st.sampled_from(["//", "/", "", "///", ":"]),
)
_FORMS = ["{}", "{}?retries=3", "failover:({})", "failover:({},{})", "FAILOVER:({})", "failover:{}", "failover:(h1,{})"]
_FORMS += ["embedded:{}"]


def test_no_part_of_a_password_is_in_an_error_whatever_is_around_it() -> None:
    for text in (
        "failover:(\tamqp://alice:alpha,gamma@host:5672)",
        "failover:( amqp://alice:alpha?gamma@host:5672)",
        "failover:(AMQP://alice:alpha,gamma@host)",
        "failover:(amqp://h1,AMQPS://alice:alpha,gamma@host)",
        "failover:(tcp://alice:alpha,gamma@host)",
        "failover:(tcp://alice:alpha?gamma@host)",
        "failover:(amqp:/alice:alpha,gamma@host)",
        "failover:(//alice:alpha,gamma@host)",
        "failover:(alice:alpha,gamma@host)",
        "failover:(amqp://alice:alpha,amqp://gamma@host:1/x)",
        "failover:(amqp://alice:alpha,gamma:delta@host)",
        "failover:(amqp://alice:alpha@gamma:1x,omega@host)",
        "amqp:alice:alpha?gamma@host",
        "embedded:amqp://alice:alpha?gamma@host",
        "amqp:/alice:alpha?gamma=1@host",
        "amqp://alice:al\uff20alpha@host",
        b"amqp://alice:alpha@host",
        ["amqp://alice:alpha@host"],
    ):
        shown = shown_of(text)
        assert not [part for part in ("alpha", "gamma", "delta") if part in shown], shown


def shown_of(text: object) -> str:
    """Everything that the error of a URL holds, and the errors that led to it; nothing where there is none."""
    shown: list[str] = []
    try:
        parse_url(text)  # type: ignore[arg-type]
    except InvalidURLException as raised:
        error: BaseException | None = raised
        while error is not None:
            shown += [repr(error), str(error), *traceback.format_exception(error)]
            error = error.__cause__ or error.__context__
        return "\n".join(shown)
    return ""


@given(_DIVIDING, _DIVIDING, _BEGINNINGS, st.sampled_from(_FORMS))
@example("?", "?", ("", "amqp:", "//"), "{}")
@example("?retries=", "x", ("", "amqp:", "//"), "{}")
@example(",", "x", ("", "amqp:", "//"), "failover:({})")
@example("/", "?", ("", "amqp:", "//"), "{}")
@example("://", "x", ("", "amqp:", "//"), "{}")
@example("\uff1f", "x", ("", "amqp:", "//"), "{}")
@example("\u2100", "\uff20", ("", "amqp:", "//"), "failover:({})")
@example(",", ",", ("\t", "AMQP:", "/"), "failover:({},{})")
@settings(max_examples=500)
def test_no_error_has_a_part_of_a_password_that_is_not_encoded(
    first: str, second: str, beginning: tuple[str, str, str], form: str
) -> None:
    for user in ("alice:", ""):
        if not user and "//" not in beginning:
            continue  # what is ahead of the first colon is a scheme then
        one = f"{''.join(beginning)}{user}alpha{first}gamma{second}omega@host:5672"
        shown = shown_of(form.format(one, one))
        assert not [part for part in ("alpha", "gamma", "omega") if part in shown], shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("amqp://alice:secret@host?retries=x", "retries='x' is not a number"),
        ("amqp://alice:secret@host/path", "'amqp://***@host/path' has a path"),
        ("amqp://alice:secret@:5672", "'amqp://***@:5672' names no host"),
        ("amqp://alice@host?colour=red", "unknown option 'colour'"),
        ("failover:(amqp://alice:secret@a?retries=x, amqps://alice:secret@[::1]:5)", "retries='x' is not a number"),
        ("failover:(amqp://alice:secret@a,amqp://alice:secret@a)", "an address is given twice"),
        ("failover:(tcp://a,tcp://b)", "'tcp://a' in a failover URL is neither amqp://"),
        (
            "failover:(tcp://alice:secret@a)",
            "'failover:(tcp://***@a)' is not understood; write each address as amqp://",
        ),
        ("tcp://alice:secret@host", "'tcp://***@host' has none of the forms"),
        ("alice:secret@host", "'***@host' has none of the forms"),
    ],
)
def test_an_error_without_its_password_still_says_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(InvalidURLException) as raised:
        parse_url(text)
    assert reason in raised.value.reason
    assert "secret" not in shown_of(text)


def test_a_long_url_that_fails_is_refused_at_once() -> None:
    for part in (" ", "amqp://a@b,", "?", "amqp://a:b@[", "a:", "//"):
        count = (MAX_URL_LENGTH - 20) // len(part)
        for text in (f"failover:({part * count}@h)", f"amqp://{part * count}@h/x"):
            with pytest.raises(InvalidURLException):
                parse_url(text)


def test_a_password_that_is_not_encoded_is_told_how_to_be() -> None:
    with pytest.raises(InvalidURLException, match="percent-encoded") as raised:
        parse_url("amqp://alice:pa?ss@host:5672")
    assert "'amqp://***@host:5672'" in str(raised.value)
    assert parse_url("amqp://alice:pa%3Fss@host:5672").addresses[0].password == "pa?ss"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        *("amqp://u:hunter2\uff20h:y", "amqp://u:hunter2\ufe6bh/path", "amqps://u:hunter2\uff20:5"),
        *("amqp://u:hunter2%40h:y", "amqp://u:hunter2%40h:5672x"),
    ],
)
def test_no_error_has_a_password_ahead_of_a_sign_of_another_form(text: str) -> None:
    with pytest.raises(InvalidURLException) as caught:
        parse_url(text)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in masked(text)


@pytest.mark.parametrize("url", ["amqp://host", "failover:(amqp://a,amqp://b)"])
def test_an_option_of_the_engine_in_the_url_of_a_server_says_where_it_belongs(url: str) -> None:
    with pytest.raises(InvalidURLException) as told:
        parse_url(f"{url}?max_deliveries=3")
    assert str(told.value) == (
        "'max_deliveries' is an option of the engine, and so of the server here: holdfast serve --option"
        " max_deliveries=3; other brokers have settings of their own"
    )
