"""The methods that make messages, which sessions and contexts have in common."""

from __future__ import annotations

from typing import Any

from sdk.messages.message import Message
from sdk.messages.types import BytesMessage, MapMessage, ObjectMessage, StreamMessage, TextMessage


class MessageFactory:
    """Makes messages of each type.  Keeps no state: the base class of ``Session`` and ``JMSContext``."""

    __slots__ = ()

    def create_message(self) -> Message:
        """A message without a body."""
        return Message()

    def create_text_message(self, text: str | None = None) -> TextMessage:
        """A message that carries a str."""
        return TextMessage(text)

    def create_bytes_message(self, body: bytes | None = None) -> BytesMessage:
        """A message that carries bytes."""
        return BytesMessage(body)

    def create_map_message(self, body: dict[str, Any] | None = None) -> MapMessage:
        """A message that carries names and values."""
        return MapMessage({} if body is None else body)

    def create_stream_message(self, body: list[Any] | None = None) -> StreamMessage:
        """A message that carries a list of values."""
        return StreamMessage([] if body is None else body)

    def create_object_message(self, body: Any = None) -> ObjectMessage:
        """A message that carries one value of the types that a map can hold."""
        return ObjectMessage(body)
