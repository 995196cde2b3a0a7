"""Handlers of signals run in the main thread, between any two steps of a call: they may raise, or close."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    session = connection.create_session(AcknowledgeMode.INDIVIDUAL)
    consumer = session.create_consumer(session.create_queue("q"))
    sender = connection.create_session()
    producer = sender.create_producer(sender.create_queue("q"))
    for number in range(1000):
        try:
            if number < 500:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 * (1 + number % 20))
            producer.send(str(number))
            message = consumer.receive(10)
            if message is not None:
                again += message.body in acknowledged
                message.acknowledge()
                acknowledged.add(message.body)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            alarms += 1
assert alarms > 10, alarms
assert not again, again
assert len(acknowledged) > 500
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


def run(program: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_handler_that_raises_harms_no_engine_in_its_process(where: str, tmp_path: object) -> None:
    run(RAISING, f"embedded:{tmp_path}" if where == "disk" else "embedded:")


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
