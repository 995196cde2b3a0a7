"""Handlers of signals run in the main thread, between any two steps of a call: they may raise, or close."""

from __future__ import annotations

import pytest

from tests import forked_command
from tests.server_process import ServerProcess

#: A program that is interrupted in the middle of its calls again and again.
RAISING = """
import signal, sys
from collections import Counter
from sdk import AcknowledgeMode, ConnectionFactory

class Alarm(Exception): pass

def alarm(*_):
    raise Alarm

signal.signal(signal.SIGALRM, alarm)
alarms, acknowledged, again = 0, set(), 0
with ConnectionFactory(sys.argv[1]).create_connection() as connection:
    connection.start()
    session = sender = None
    rounds = 0
    while rounds < 1000 or (alarms <= 10 and rounds < 50000):  # as many on a slow machine, and on a fast one
        rounds += 1
        number = rounds
        if session is None:
            session, sender = connection.create_session(AcknowledgeMode.INDIVIDUAL), connection.create_session()
            consumer = session.create_consumer(session.create_queue("q"))
            producer = sender.create_producer(sender.create_queue("q"))
        try:
            if number < 500 or alarms <= 10:
                signal.setitimer(signal.ITIMER_REAL, 0.00003 * (1 + number % 60))
            producer.send(str(number))
            message = consumer.receive(10)
            if message is not None:
                again += message.body in acknowledged
                message.acknowledge()
                acknowledged.add(message.body)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            alarms += 1
            session.close()
            sender.close()
            session = None
assert alarms > 10, alarms
assert not again, again
assert len(acknowledged) >= rounds - alarms, (len(acknowledged), rounds, alarms)
"""

#: A program whose handler closes the connection whose window of sends is full.
FULL_WINDOW = """
import signal, sys, time
from sdk import ConnectionFactory, DeliveryMode, JMSException

took = []

def close(*_):
    began = time.monotonic()
    connection.close()
    took.append(time.monotonic() - began)

signal.signal(signal.SIGALRM, close)
for number in range(40):
    options = "send_window_messages=2&close_timeout_seconds=0.2"
    connection = ConnectionFactory(f"embedded:{sys.argv[1]}?{options}").create_connection()
    session = connection.create_session()
    producer = session.create_producer(session.create_queue("q"))
    signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.0001 * number)
    try:
        while len(took) <= number:
            producer.send("x", delivery_mode=DeliveryMode.NON_PERSISTENT)
    except JMSException:
        assert len(took) > number
assert max(took) < 5, max(took)
"""

#: What a program begins with whose handler raises while it is armed.
ARMED = """
import random, signal, sys, time
from sdk import AcknowledgeMode, ConnectionFactory, DeliveryMode

class Alarm(Exception): pass

def alarm(*_):
    if armed: raise Alarm

armed = False
signal.signal(signal.SIGALRM, alarm)
"""

#: A program whose closing is interrupted, and done again; behind ARMED.
CLOSING_AGAIN = """
alarms, chance = 0, random.Random(1)
with ConnectionFactory(sys.argv[1]).create_connection() as connection:
    connection.start()
    sending = connection.create_session()
    for number in range(100):
        queue = sending.create_queue(f"q{number}")
        producer = sending.create_producer(queue)
        for body in range(20):
            producer.send(str(body), delivery_mode=DeliveryMode.NON_PERSISTENT)
        session = connection.create_session(AcknowledgeMode.CLIENT)
        consumer = session.create_consumer(queue)
        for _ in range(3):
            assert consumer.receive(60)
        closed = session if sys.argv[2] == "session" else consumer
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00001, 0.0015))
            closed.close()
            armed = False
        except Alarm:
            armed = False
            alarms += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        began = time.monotonic()
        closed.close()
        assert time.monotonic() - began < 5
        other = connection.create_session()
        receiver = other.create_consumer(queue)
        for _ in range(20 if closed is session else 17):
            assert receiver.receive(60), number
        other.close()
        session.close()
assert alarms > 5, alarms
"""

#: A program whose handler closes what it uses.
CLOSING = """
import os, signal, sys
from sdk import AcknowledgeMode, ConnectionFactory, DeliveryMode, IllegalStateException, JMSException

connection = ConnectionFactory(sys.argv[1]).create_connection()
connection.start()
session = connection.create_session(AcknowledgeMode[sys.argv[2]])
producer = session.create_producer(session.create_queue("q"))
consumer = session.create_consumer(session.create_queue("q"))
closed = []

def close(*_):
    connection.close()
    closed.append(True)

signal.signal(signal.SIGALRM, close)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[3]))
try:
    while not closed:
        producer.send("x", delivery_mode=DeliveryMode.NON_PERSISTENT)
        if consumer.receive_nowait() is not None and sys.argv[2] == "CLIENT":
            session.recover()
except JMSException as error:
    assert closed, error
"""

#: A program that is interrupted as it opens and closes engines.
OPENING = """
import signal, sys, time
from broker_adapter import StoreLockedException
from broker_adapter.engine.broker import Broker
from broker_adapter.settings import EngineSettings
from sdk import ConnectionFactory

class Alarm(Exception): pass

def alarm(*_):
    global alarms
    alarms += 1
    if sys.argv[2] == "raises":
        raise Alarm
    other.close()

signal.signal(signal.SIGALRM, alarm)
alarms = 0
for number in range(100):
    other = ConnectionFactory(f"embedded:{sys.argv[1]}/{number % 2}").create_connection()
    connection = None
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001 * (1 + number % 50))
        try:
            connection = ConnectionFactory(f"embedded:{sys.argv[1]}/2").create_connection()
            session = connection.create_session()
            session.create_producer(session.create_queue("q")).send("x")
            connection.close()
        except Alarm:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm:
        pass
    if connection is not None:
        connection.close()
    del connection
    other.close()
assert alarms > 10, alarms
end = time.monotonic() + 60
for number in range(3):
    while True:
        try:
            Broker(EngineSettings(), f"{sys.argv[1]}/{number}").close()
            break
        except StoreLockedException:
            assert time.monotonic() < end
            time.sleep(0.01)
"""

#: A program whose handler closes the connection that makes a request.
REQUESTING = """
import signal, sys
from broker_adapter import JMSException
from broker_adapter.amqp.messages.payloads import (decode_payload)
from broker_adapter.in_process import InProcessTransport
from broker_adapter.transport import Credentials
from broker_adapter.urls.url import parse_url

closed = []

def close(*_):
    transport.close(10)
    closed.append(True)

signal.signal(signal.SIGALRM, close)
for number in range(20):
    transport = InProcessTransport(parse_url(f"embedded:{sys.argv[1]}"), decode_payload)
    transport.open(Credentials(), lambda _event: None, 10)
    closed.clear()
    signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.0003 * number)
    try:
        while not closed:
            transport.request("statistics", {}, 10)
    except JMSException as error:
        assert closed, error
"""


def run(program: str, *arguments: str) -> None:
    done = forked_command.run_python(["-c", program, *arguments])
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_handler_that_raises_harms_no_engine_in_its_process(where: str, tmp_path: object) -> None:
    run(RAISING, f"embedded:{tmp_path}" if where == "disk" else "embedded:")


def test_a_handler_may_close_a_connection_whose_send_waits_for_a_place(tmp_path: object) -> None:
    run(FULL_WINDOW, str(tmp_path))


@pytest.mark.parametrize("what", ["session", "consumer"])
def test_a_close_that_was_interrupted_is_done_by_the_next_call(what: str) -> None:
    run(ARMED + CLOSING_AGAIN, "embedded:", what)


@pytest.mark.parametrize("handler", ["raises", "closes"])
def test_a_handler_may_run_while_an_engine_is_opened_or_closed(handler: str, tmp_path: object) -> None:
    run(OPENING, str(tmp_path), handler)


def test_a_handler_may_close_the_connection_that_makes_a_request(tmp_path: object) -> None:
    run(REQUESTING, str(tmp_path))


@pytest.mark.parametrize("mode", ["AUTO", "CLIENT"])
@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "amqp"])
def test_a_handler_may_close_what_the_thread_that_it_interrupts_is_using(
    tmp_path_factory: pytest.TempPathFactory, embedded: bool, mode: str
) -> None:
    if embedded:
        for number in range(5):
            run(CLOSING, "embedded:", mode, str(0.05 + number / 50))
        return
    with ServerProcess(tmp_path_factory.mktemp("data")) as server:
        for number in range(5):
            run(CLOSING, server.url, mode, str(0.05 + number / 50))
