"""Where else a server can be reached, as it is said and understood."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.amqp.client.brokers import announced_by, servers_of
from broker_adapter.amqp.wire import MAX_SERVERS, REDUNDANCY, SERVER_LIST
from broker_adapter.errors import MessageFormatException
from broker_adapter.server.announcements import Announcement, server_of, servers_from
from broker_adapter.transport import BrokerAnnounced, Server


@pytest.mark.parametrize(
    ("text", "host", "port", "tls"),
    [
        ("h:1", "h", 1, None),
        (" amqp://h:65535 ", "h", 65535, False),
        ("amqps://h.example:5671", "h.example", 5671, True),
        ("[::1]:5672", "::1", 5672, None),
    ],
)
def test_a_server_is_a_host_and_a_port_with_or_without_tls(text: str, host: str, port: int, tls: bool | None) -> None:
    assert server_of(text) == Server(host, port, tls)


@pytest.mark.parametrize("text", ["", "h", ":1", "h:", "h:0", "h:65536", "h:x", "http://h:1", 5, None])
def test_anything_else_is_refused(text: Any) -> None:
    with pytest.raises(MessageFormatException, match="is not of the form HOST:PORT"):
        server_of(text)


@pytest.mark.parametrize("text", ["amqp://alice:secret@h:1", "alice:secret@h:1", "amqp://alice:secret@h"])
def test_a_server_has_no_user_and_its_password_is_not_told(text: str) -> None:
    for read, argument in ((server_of, text), (servers_from, [text]), (servers_from, text)):
        with pytest.raises(MessageFormatException) as raised:
            read(argument)
        assert "secret" not in str(raised.value)


def test_a_list_has_a_limit_and_is_a_list() -> None:
    assert len(servers_from([f"h:{port}" for port in range(1, MAX_SERVERS + 1)])) == MAX_SERVERS
    with pytest.raises(MessageFormatException, match="101 servers are more than the limit of 100"):
        servers_from([f"h:{port}" for port in range(1, MAX_SERVERS + 2)])
    with pytest.raises(MessageFormatException, match="is not a list of servers"):
        servers_from("h:1")


def test_what_is_said_is_what_is_understood() -> None:
    servers = servers_from(["a:1", "amqps://b:2", "amqp://c:3"])
    understood = tuple(Server(each.host, each.port, each.tls, each.host) for each in servers)
    announcement = Announcement(servers, 2)
    assert servers_of(announcement.as_properties()[SERVER_LIST]) == understood
    assert announced_by(announcement.as_answer()) == BrokerAnnounced(understood, 2)


def test_a_server_of_no_group_says_nothing_of_redundancy() -> None:
    assert Announcement().as_properties() == {}
    assert Announcement(redundancy=0).as_properties() == {REDUNDANCY: 0}
    assert announced_by(Announcement().as_answer()) == BrokerAnnounced((), 0)


@pytest.mark.parametrize(
    "announced",
    [
        None,
        5,
        "h:1",
        [5, "h", {}, {"network-host": 5, "port": 1}, {"network-host": "h"}, {"network-host": "h", "port": 0}],
        {"network-host": "h", "port": 1},
    ],
)
def test_what_is_no_list_of_servers_is_left_out(announced: Any) -> None:
    assert servers_of(announced) == ()
    assert announced_by(announced) == BrokerAnnounced((), 0)


def test_a_broker_announces_only_so_many_servers() -> None:
    assert len(servers_of([{"network-host": "h", "port": 1}] * 500)) == MAX_SERVERS
