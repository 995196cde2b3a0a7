"""What messages are refused before the engine's rules see them."""

from __future__ import annotations

import pytest

from broker_adapter.engine.commands.messaging import NewMessage, incoming
from broker_adapter.envelope import Identity
from broker_adapter.errors import MessageFormatException


def message_of(identity: Identity) -> NewMessage:
    return incoming(0, b"", 4, True, None, None, identity, None)


@pytest.mark.parametrize("number", [1 << 63, (1 << 64) - 1, 1 << 64, 1 << 1000, -1])
def test_an_identity_that_no_store_has_room_for_is_refused_in_words(number: int) -> None:
    for identity in (Identity("p", 0, number), Identity("p", number, 0)):
        with pytest.raises(MessageFormatException, match=f"{number}.* of a message does not fit into 63 bits"):
            message_of(identity)


def test_the_greatest_numbers_of_an_identity_are_taken() -> None:
    greatest = Identity("p", (1 << 63) - 1, (1 << 63) - 1)
    assert message_of(greatest).identity == greatest
