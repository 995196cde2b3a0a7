"""What makes messages: a session and a context make the same ones."""

from __future__ import annotations

from typing import Any

import pytest

from sdk import ConnectionFactory, Message
from sdk.messages.factory import MessageFactory

_BODIES = {
    "text": "text",
    "bytes": b"bytes",
    "map": {"name": 1},
    "stream": [1, "two"],
    "object": 5,
}


@pytest.mark.parametrize("kind", _BODIES)
def test_a_message_is_made_with_and_without_a_body(kind: str) -> None:
    make: Any = getattr(MessageFactory(), f"create_{kind}_message")
    assert make(_BODIES[kind]).body == _BODIES[kind]
    assert type(make()).__name__ == f"{kind.title()}Message"
    assert make().body == {"map": {}, "stream": []}.get(kind)


def test_sessions_and_contexts_make_messages() -> None:
    with ConnectionFactory("embedded:").create_context() as context:
        assert type(context.create_message()) is type(context._session.create_message()) is Message
