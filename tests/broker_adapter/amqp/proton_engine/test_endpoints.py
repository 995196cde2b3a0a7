"""Sessions and links of two peers on a pretend wire: how they begin and end, and their limits."""

from __future__ import annotations

import gc

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    LinkRemoteClose,
    LinkRemoteOpen,
    RemoteClose,
    RemoteOpen,
    SessionRemoteClose,
    SessionRemoteOpen,
    Terminus,
    TransportFailed,
)
from broker_adapter.amqp.messages.values import Described, Symbol, ULong
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from broker_adapter.amqp.wire import MANAGEMENT_ADDRESS
from broker_adapter.errors import IllegalStateException, MessageFormatException, ResourceAllocationException
from tests.broker_adapter.amqp.frames import HEADER, begin, end, open_frame
from tests.broker_adapter.amqp.pair import Pair, arrived, every, last, session_of


def test_attach_carries_source_and_target(pair: Pair) -> None:
    source = Terminus(
        "topic",
        durable=2,
        expiry="never",
        timeout=9,
        copies=True,
        filters={Symbol("jms-selector"): Described(ULong(0x468C00000004), "a = 1")},
        outcomes=("amqp:accepted:list", "amqp:released:list"),
        capabilities=("topic", "shared"),
    )
    target = Terminus(dynamic=True, dynamic_properties={Symbol("lifetime-policy"): Described(ULong(0x2B), [])})
    session = pair.client.begin_session()
    link = pair.client.attach_receiver(session, "name|2", source, target, presettled=True, properties={"p": 5})
    pair.pump()

    opened = last(pair.server_events, LinkRemoteOpen)
    assert opened.source == source
    assert opened.target == target._replace(expiry="session-end")
    assert (opened.name, opened.by_peer, opened.is_sender, opened.presettled) == ("name|2", True, True, True)
    assert opened.properties == {"p": 5}

    pair.server.accept_link(opened.link, opened.source, opened.target, max_message_bytes=1234)
    pair.pump()
    answer = last(pair.client_events, LinkRemoteOpen)
    assert (answer.link, answer.by_peer, answer.max_message_bytes, answer.source) == (link, False, 1234, source)


def test_a_coordinator_is_known_by_its_target(pair: Pair) -> None:
    target = Terminus(capabilities=("amqp:local-transactions",), coordinator=True)
    pair.client.attach_sender(pair.client.begin_session(), "c", Terminus(), target)
    pair.pump()

    assert last(pair.server_events, LinkRemoteOpen).target == target


def test_a_refused_link_has_no_terminus_and_then_an_error(pair: Pair) -> None:
    link = pair.client.attach_sender(pair.client.begin_session(), "s", Terminus(), Terminus("nowhere"))
    pair.pump()
    error = AmqpError("amqp:not-found", "no such queue", {"k": "v"})
    pair.server.refuse_link(last(pair.server_events, LinkRemoteOpen).link, error)
    pair.pump()

    assert last(pair.client_events, LinkRemoteOpen).target is None
    assert last(pair.client_events, LinkRemoteClose) == LinkRemoteClose(link, True, error)
    pair.client.close_link(link)
    pair.pump()
    assert "links=0" in repr(pair.client)
    assert "links=0" in repr(pair.server)


def test_a_detach_that_keeps_the_subscription_says_so(pair: Pair) -> None:
    client, server = pair.receiver()
    pair.client.close_link(client, closed=False)
    pair.pump()

    assert last(pair.server_events, LinkRemoteClose) == LinkRemoteClose(server, False, None)


def test_the_end_of_a_session_ends_its_links(pair: Pair) -> None:
    client, server = pair.sender()
    pair.client.send(client, b"x")
    pair.pump()
    number = arrived(pair)[0].number
    session = session_of(pair, client)

    pair.client.end_session(session, AmqpError("a:b", "c"))
    pair.pump()

    assert last(pair.server_events, SessionRemoteClose).error == AmqpError("a:b", "c", {})
    assert last(pair.client_events, SessionRemoteClose).session == session
    assert "sessions=0 links=0" in repr(pair.client)
    assert "sessions=0 links=0" in repr(pair.server)
    pair.server.settle(server, [number], ACCEPTED_STATE)
    pair.server.close_link(server)
    with pytest.raises(IllegalStateException):
        pair.client.send(client, b"y")
    with pytest.raises(IllegalStateException):
        pair.client.attach_sender(session, "late", Terminus(), Terminus("q"))
    gc.collect()
    pair.pump()
    assert every(pair.server_events, TransportFailed) == []


def test_links_and_sessions_have_a_limit() -> None:
    pair = Pair(PeerLimits(max_sessions=3), PeerLimits(max_links=2, max_sessions=3)).opened()
    sessions = [pair.client.begin_session() for _ in range(3)]
    with pytest.raises(IllegalStateException, match="3 sessions are the limit"):
        pair.client.begin_session()
    for name in "ab":
        pair.client.attach_sender(sessions[0], name, Terminus(), Terminus("q"))
    pair.pump()
    assert every(pair.server_events, TransportFailed) == []
    refused = pair.client.attach_sender(sessions[1], "c", Terminus(), Terminus("q"))
    pair.pump()
    opened = last(pair.server_events, LinkRemoteOpen)
    assert opened.excess is not None
    pair.server.refuse_link(opened.link, opened.excess)
    pair.pump()
    closed = last(pair.client_events, LinkRemoteClose)
    assert (closed.link, closed.error) == (refused, opened.excess._replace(info={}))
    assert opened.excess.condition == "amqp:resource-limit-exceeded"
    pair.client.close_link(refused)
    pair.pump()
    assert every(pair.server_events, TransportFailed) == []


def test_a_peer_that_attaches_on_although_it_is_refused_loses_its_connection() -> None:
    limits = PeerLimits(max_links=2, max_sessions=1)
    pair = Pair(PeerLimits(), limits).opened()
    session = pair.client.begin_session()
    refused = limits.extra_links + 64
    for number in range(2 + refused):
        pair.client.attach_sender(session, str(number), Terminus(), Terminus("q"))
    pair.pump()
    assert every(pair.server_events, TransportFailed) == []
    assert [each.excess is None for each in every(pair.server_events, LinkRemoteOpen)] == [True] * 2 + [False] * refused
    pair.client.attach_sender(session, "one more", Terminus(), Terminus("q"))
    pair.pump()
    assert last(pair.server_events, TransportFailed).error.condition == "amqp:resource-limit-exceeded"
    assert last(pair.client_events, RemoteClose).error is not None


def test_links_for_requests_and_transactions_do_not_count_up_to_a_limit_of_their_own() -> None:
    limits = PeerLimits(max_links=2, max_sessions=2)
    pair = Pair(PeerLimits(), limits).opened()
    sessions = [pair.client.begin_session() for _ in range(2)]
    node, coordinator = Terminus(MANAGEMENT_ADDRESS), Terminus(coordinator=True)

    def attach(session: int, name: str, target: Terminus) -> tuple[int, bool]:
        """The link, and whether the server would take it."""
        link = pair.client.attach_sender(session, name, Terminus(), target)
        pair.pump()
        return link, last(pair.server_events, LinkRemoteOpen).excess is None

    def close(link: int) -> None:
        pair.server.refuse_link(last(pair.server_events, LinkRemoteOpen).link, AmqpError("amqp:not-found"))
        pair.pump()
        pair.client.close_link(link)
        pair.pump()

    for name in "ab":
        assert attach(sessions[0], name, Terminus("q"))[1]
    link, taken = attach(sessions[0], "c", Terminus("q"))
    assert not taken
    close(link)
    pair.client.attach_receiver(sessions[0], "answers", node, Terminus("here"))
    for session in sessions:
        assert attach(session, "transactions", coordinator)[1]
    link, taken = attach(sessions[0], "requests", node)
    assert taken
    assert not attach(sessions[0], "d", Terminus("q"))[1], "which these have left no room for"
    assert not attach(sessions[1], "one too many", coordinator)[1]


def test_a_peer_answers_as_many_links_as_the_other_side_takes() -> None:
    """A server may allow more links than its clients allow it to attach by itself."""
    pair = Pair(PeerLimits(max_links=2), PeerLimits(max_links=300)).opened()
    session = pair.client.begin_session()
    for number in range(300):
        pair.client.attach_sender(session, str(number), Terminus(), Terminus("q"))
    pair.pump()
    for opened in every(pair.server_events, LinkRemoteOpen):
        assert opened.excess is None
        pair.server.accept_link(opened.link, opened.source, opened.target)
    pair.pump()
    assert every(pair.client_events, TransportFailed) == []
    assert len(every(pair.client_events, LinkRemoteOpen)) == 300


@pytest.mark.parametrize("frame_bytes", [512, 4096, 1 << 20])
def test_an_attach_that_does_not_fit_into_a_frame_is_not_sent(frame_bytes: int) -> None:
    for limits in (
        (PeerLimits(max_frame_bytes=frame_bytes), PeerLimits()),
        (PeerLimits(), PeerLimits(max_frame_bytes=frame_bytes)),
    ):
        pair = Pair(*limits).opened()
        session = pair.client.begin_session()
        most = min(frame_bytes, 256 * 1024)
        rest = min(512, most // 2)
        for name, target in (("s", "q" * (most - rest)), ("s" * (most - rest + 1), None)):
            with pytest.raises(ResourceAllocationException, match="fit into a frame"):
                pair.client.attach_sender(session, name, Terminus(), Terminus(target))
        longest = "\N{EURO SIGN}" * ((most - rest - 1) // 3)
        link = pair.client.attach_sender(session, "s", Terminus(), Terminus(longest))
        pair.pump()
        opened = last(pair.server_events, LinkRemoteOpen)
        assert opened.excess is None
        pair.server.accept_link(opened.link, opened.source, opened.target)
        pair.pump()
        answer = last(pair.client_events, LinkRemoteOpen)
        assert (answer.link, answer.target and answer.target.address) == (link, longest)
        assert every(pair.client_events, TransportFailed) == []


def test_what_an_answer_would_repeat_beyond_the_peers_frames_is_refused() -> None:
    pair = Pair(PeerLimits(max_frame_bytes=512), PeerLimits()).opened()
    pair.client._connection.limits = PeerLimits()  # it does not heed its own limit
    session = pair.client.begin_session()
    pair.client.attach_sender(session, "s", Terminus(), Terminus("q" * 600))
    pair.pump()
    opened = last(pair.server_events, LinkRemoteOpen)
    assert opened.excess is not None
    pair.server.refuse_link(opened.link, opened.excess)
    pair.pump()
    assert every(pair.client_events, TransportFailed) == []
    pair.client.attach_sender(session, "s" * 600, Terminus(), Terminus("q"))
    pair.pump()
    assert last(pair.server_events, TransportFailed).error.description == "the name of a link does not fit into a frame"


def test_sessions_and_links_that_end_make_room_for_others() -> None:
    pair = Pair(PeerLimits(max_sessions=2), PeerLimits(max_links=2, max_sessions=2)).opened()
    for _ in range(20):
        client, _ = pair.sender()
        pair.client.send(client, b"x")
        pair.pump()
        pair.client.end_session(session_of(pair, client))
        pair.pump()

    assert every(pair.server_events, TransportFailed) == []
    assert len(every(pair.server_events, SessionRemoteOpen)) == 20


@pytest.mark.parametrize("opened_late", [False, True])
def test_sessions_that_begin_and_end_by_the_thousand_at_once(opened_late: bool) -> None:
    peer = Peer(PeerLimits(), server=True)
    peer.receive(HEADER + open_frame())
    if not opened_late:
        peer.open("server")
    peer.receive((begin(0) + end(0)) * 2_000)
    if opened_late:
        peer.open("server")
    events = peer.events()
    assert every(events, TransportFailed) == []
    assert len(every(events, SessionRemoteClose)) == 2_000
    assert len(every(events, SessionRemoteOpen)) == 2_000


def test_a_link_is_answered_once_and_unknown_numbers_are_ignored(pair: Pair) -> None:
    _, server = pair.sender()
    with pytest.raises(IllegalStateException, match="attached already"):
        pair.server.accept_link(server, Terminus(), Terminus())
    with pytest.raises(IllegalStateException, match="closed"):
        pair.server.accept_link(12_345, Terminus(), Terminus())
    pair.server.close_link(12_345)
    pair.server.credit(12_345, 1)
    pair.server.drained(12_345)
    pair.server.settle(12_345, [1], ACCEPTED_STATE)
    pair.server.settle(server, [99], ACCEPTED_STATE)
    pair.server.end_session(12_345)
    assert pair.server.unsettled(12_345) == ()
    assert pair.server.outgoing_bytes(12_345) == 0


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_amqp_cannot_carry_are_refused_and_leave_nothing_behind(name: str) -> None:
    pair = Pair().opened()
    session = pair.client.begin_session()
    for link_name, address in ((name, "q"), ("link", name)):
        with pytest.raises(MessageFormatException, match="cannot be attached"):
            pair.client.attach_sender(session, link_name, Terminus(), Terminus(address))
    with pytest.raises(MessageFormatException, match="cannot be opened"):
        Peer(PeerLimits()).open(name)
    pair.pump()

    assert "links=0" in repr(pair.client)
    assert every(pair.server_events, LinkRemoteOpen) == []


def test_what_a_peer_sent_and_cannot_be_echoed_fails_its_connection() -> None:
    pair = Pair().opened()
    _, server = pair.receiver()
    opened = last(pair.server_events, LinkRemoteOpen)
    pair.client.attach_receiver(session_of(pair, opened.link), "second", Terminus("q"), Terminus())
    pair.pump()
    second = last(pair.server_events, LinkRemoteOpen)
    pair.server.accept_link(second.link, Terminus("q", filters={"ä": 1}), Terminus())

    assert server != second.link
    assert last(pair.server.events(), TransportFailed).error.condition == "amqp:invalid-field"


def test_a_session_that_came_ahead_of_our_open_is_answered_after_it() -> None:
    client, server = Peer(PeerLimits()), Peer(PeerLimits(), server=True)
    client.open("client")
    session = client.begin_session()
    server.receive(client.pending_output())
    assert [type(event) for event in server.events()] == [RemoteOpen, SessionRemoteOpen]
    client.receive(server.pending_output())  # the header only
    server.open("server")
    client.receive(server.pending_output())
    assert [type(event) for event in client.events()] == [RemoteOpen, SessionRemoteOpen]
    assert session in client._endpoints.sessions


def test_no_more_sessions_are_begun_than_the_peer_allows() -> None:
    pair = Pair(PeerLimits(), PeerLimits(max_sessions=2)).opened()
    for _ in range(2):
        pair.client.begin_session()
    with pytest.raises(IllegalStateException, match="2 sessions are the limit"):
        pair.client.begin_session()
