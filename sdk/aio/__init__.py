"""The SDK for ``asyncio``: the same objects, with calls that are awaited.

::

    from holdfast import aio

    async with aio.connect("embedded:./data") as connection:
        async with connection.create_session() as session:
            queue = session.create_queue("orders")
            async with session.create_producer(queue) as producer, session.create_consumer(queue) as consumer:
                await producer.send("hello")
                print(await consumer.receive(timeout=5))

Theory of operation
    A second face over one SDK: no rule is here.  Each object has the one of :mod:`sdk` that it stands for, and its
    calls have the same parameters, results and errors.  What may wait is done by a thread of the session, and the loop
    waits for its end; what waits for nothing, which is nearly every message, is done at once.
"""

from sdk.aio.connection import Connection, Events, connect
from sdk.aio.consumer import MessageConsumer, QueueBrowser
from sdk.aio.producer import MessageProducer
from sdk.aio.region import ContinuousQuery, Region
from sdk.aio.requestor import Requestor, reply
from sdk.aio.session import Session

__all__ = [
    "Connection",
    "ContinuousQuery",
    "Events",
    "MessageConsumer",
    "MessageProducer",
    "QueueBrowser",
    "Region",
    "Requestor",
    "Session",
    "connect",
    "reply",
]
