"""Messaging in the manner of JMS: connections, sessions, producers, consumers, messages.

::

    from sdk import AcknowledgeMode, ConnectionFactory

    with ConnectionFactory("embedded:./data").create_connection() as connection:
        connection.start()
        with connection.create_session(AcknowledgeMode.CLIENT) as session:
            queue = session.create_queue("orders")
            session.create_producer(queue).send("hello")
            with session.create_consumer(queue) as consumer:
                message = consumer.receive(timeout=5)
                message.acknowledge()

Applications use what has no underscore.  What has one is for this package, whose modules also use it of each other.
"""

from ack_modes import AcknowledgeMode
from broker_adapter import (
    BrokerStatistics,
    BrowserInterruptedException,
    ConnectionLostException,
    Destination,
    DestinationKind,
    Failed,
    IllegalStateException,
    Interrupted,
    InvalidClientIDException,
    InvalidDestinationException,
    InvalidSelectorException,
    InvalidURLException,
    JMSException,
    JMSSecurityException,
    LinkInterrupted,
    LinkLost,
    LinkRestored,
    MessageEOFException,
    MessageFormatException,
    MessageNotReadableException,
    MessageNotWriteableException,
    NoSuchElementException,
    OperationTimedOutException,
    ProtocolException,
    QueueClaimedException,
    QueueStatistics,
    ResourceAllocationException,
    Restored,
    StaleAcknowledgementException,
    StoreCorruptException,
    StoreException,
    StoreLockedException,
    StoreVersionException,
    TransactionInDoubtException,
    TransactionRolledBackException,
    UnconnectedException,
    UnsupportedOperationException,
)
from sdk.connection import Connection, ConnectionMetaData
from sdk.connection_factory import ConnectionFactory
from sdk.context import JMSConsumer, JMSContext, JMSProducer
from sdk.messages.message import DeliveryMode, Message
from sdk.messages.types import BytesMessage, MapMessage, ObjectMessage, StreamMessage, TextMessage
from sdk.producer import MessageProducer
from sdk.receiving.browser import QueueBrowser
from sdk.receiving.consumer import MessageConsumer
from sdk.redundancy import RedundancyLost, RedundancyRestored
from sdk.regions.cache import RegionOperation
from sdk.regions.listener import QueryListener, RegionEvent, RegionListener, ResultPolicy
from sdk.regions.query import ContinuousQuery, QueryState
from sdk.regions.region import Region
from sdk.requestor import Requestor, reply
from sdk.sender import Sender
from sdk.session import Session

__all__ = [
    "AcknowledgeMode",
    "BrokerStatistics",
    "BrowserInterruptedException",
    "BytesMessage",
    "Connection",
    "ConnectionFactory",
    "ConnectionLostException",
    "ConnectionMetaData",
    "DeliveryMode",
    "Destination",
    "DestinationKind",
    "Failed",
    "IllegalStateException",
    "Interrupted",
    "InvalidClientIDException",
    "InvalidDestinationException",
    "InvalidSelectorException",
    "InvalidURLException",
    "JMSConsumer",
    "JMSContext",
    "JMSException",
    "JMSProducer",
    "JMSSecurityException",
    "LinkInterrupted",
    "LinkLost",
    "LinkRestored",
    "MapMessage",
    "Message",
    "MessageConsumer",
    "MessageEOFException",
    "MessageFormatException",
    "MessageNotReadableException",
    "MessageNotWriteableException",
    "MessageProducer",
    "NoSuchElementException",
    "ObjectMessage",
    "RegionOperation",
    "OperationTimedOutException",
    "ProtocolException",
    "ContinuousQuery",
    "QueryListener",
    "QueryState",
    "QueueBrowser",
    "QueueClaimedException",
    "QueueStatistics",
    "RedundancyLost",
    "RedundancyRestored",
    "Region",
    "RegionEvent",
    "RegionListener",
    "Requestor",
    "ResourceAllocationException",
    "Restored",
    "ResultPolicy",
    "Sender",
    "Session",
    "StaleAcknowledgementException",
    "StoreCorruptException",
    "StoreException",
    "StoreLockedException",
    "StoreVersionException",
    "StreamMessage",
    "TextMessage",
    "TransactionInDoubtException",
    "TransactionRolledBackException",
    "UnconnectedException",
    "UnsupportedOperationException",
    "reply",
]
