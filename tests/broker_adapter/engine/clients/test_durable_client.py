"""What a durable client knows of what it wants, without the engine around it."""

from __future__ import annotations

import pytest

from broker_adapter.engine.clients.client_queue import ClientQueue
from broker_adapter.engine.clients.durable_client import DurableClient
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind
from broker_adapter.errors import IllegalStateException

KEY = Interest(InterestKind.KEY, "a")
DEAR = Interest(InterestKind.QUERY, "price > 5", "dear")


def test_what_is_wanted_is_counted_and_named_as_it_comes_and_goes() -> None:
    client = DurableClient("desk", ClientQueue(0))
    client.want(1, {KEY: True, ALL_KEYS: False})
    client.want_more(1, {DEAR: True, KEY: False})
    client.want_more(2, {ALL_KEYS: True})
    client.want_more(3, {})
    assert client.interests == {1: {KEY: False, ALL_KEYS: False, DEAR: True}, 2: {ALL_KEYS: True}}
    assert client.asked == {1: 2, 2: 1}
    assert client.names == {"dear": (1, DEAR)}
    client.want_less(1, [DEAR, ALL_KEYS])
    assert (client.asked, client.names) == ({1: 0, 2: 1}, {})
    client.want(1, {DEAR: True})
    assert (client.interests[1], client.asked[1]) == ({DEAR: True}, 1)
    client.want_less(1, [DEAR])
    client.want_less(2, [ALL_KEYS])
    assert (client.interests, client.asked, client.names) == ({}, {}, {})


def test_a_query_has_a_name_that_no_other_one_of_the_client_has() -> None:
    client = DurableClient("desk", ClientQueue(0))
    client.want(1, {DEAR: True})
    client.check_names(1, [DEAR, DEAR])
    other = DEAR._replace(text="price > 6")
    for region, interests in ((2, [DEAR]), (1, [other]), (3, [other._replace(name="new"), DEAR._replace(name="new")])):
        with pytest.raises(IllegalStateException, match=r"another query '(dear|new)'"):
            client.check_names(region, interests)
