"""The face for ``asyncio`` behind the names of the synchronous one, so that tests of the SDK run over both.

The loop runs in a thread of its own; each call waits for its end there.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

from sdk import Message, aio

WAIT = 120.0  #: seconds; longer than anything takes
#: What the face for asyncio has not: a program awaits, in a task, where the synchronous one is called back.
MISSING = ("listener", "exception_listener", "event_listener")


class Face:
    """An object of ``sdk.aio``, whose calls wait for their end."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.__dict__.update(_target=target, _loop=loop)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return (lambda *arguments, **options: self._call(value, *arguments, **options)) if callable(value) else value

    def __setattr__(self, name: str, value: Any) -> None:
        assert name not in MISSING, name
        setattr(self._target, name, value)

    def __enter__(self) -> Face:
        return self

    def __exit__(self, *error: Any) -> None:
        self._call(self._target.__aexit__, *error)

    def __iter__(self) -> Iterator[Any]:
        messages = self._target.__aiter__()
        try:
            while True:
                yield self._call(messages.__anext__)
        except StopAsyncIteration:
            return
        finally:
            self._call(messages.aclose)

    def _call(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        given = [each._target if isinstance(each, Face) else each for each in arguments]

        async def awaited() -> Any:
            result = call(*given, **options)
            return await result if inspect.isawaitable(result) else result

        return self._faced(asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(WAIT))

    def _faced(self, result: Any) -> Any:
        if isinstance(result, list):
            return [self._faced(each) for each in result]
        if isinstance(result, Message):
            acknowledge = result._acknowledge
            if acknowledge is not None:
                result._acknowledge = lambda *arguments: self._call(acknowledge, *arguments)
            return result
        return Face(result, self._loop) if type(result).__module__.startswith("sdk.aio.") else result


class Faces:
    """A loop in a thread, and what stands for ``ConnectionFactory`` there."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def connect(self, url: str, **arguments: Any) -> Any:
        """A started connection."""
        return Face(None, self.loop)._call(aio.connect, url, **arguments)

    def events(self, connection: Any, told: Callable[[Any], object]) -> None:
        """Call this, in the loop, with what becomes of a connection."""

        async def follow(events: aio.Events) -> None:
            async for each in events:
                told(each)

        async def begin() -> None:
            self._following = asyncio.create_task(follow(connection._target.events()))

        asyncio.run_coroutine_threadsafe(begin(), self.loop).result(WAIT)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT)
        self.loop.close()
