"""Where a connection comes from, as limits count it."""

from __future__ import annotations

import pytest

from broker_adapter.server.access.origins import is_loopback, origin_of


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("@socket", "@socket"),
    ],
)
def test_an_origin_is_an_address_or_the_network_that_one_customer_has(host: str, origin: str) -> None:
    assert origin_of(host) == origin


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("LocalHost", True),
        ("10.0.0.1", False),
        ("example", False),
    ],
)
def test_loopback_is_told_by_its_spelling(host: str, local: bool) -> None:
    assert is_loopback(host) is local
