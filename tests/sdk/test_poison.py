"""A message that ends the process of an application with an engine of its own: it becomes a dead letter at last."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdk import ConnectionFactory
from tests import forked_command

MOST = 3
MESSAGES = 30
POISON = "message 12"

#: Takes all messages, and is killed by one of them.
APPLICATION = f"""
import os, sys
from sdk import AcknowledgeMode, ConnectionFactory

url, mode, listens = sys.argv[1], AcknowledgeMode[sys.argv[2]], sys.argv[3] == "listens"

def process(message):
    print(message.body, flush=True)
    if message.body == {POISON!r}:
        os.kill(os.getpid(), 9)
    if session.transacted:
        session.commit()
    elif mode in (AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL):
        message.acknowledge()

with ConnectionFactory(url).create_connection() as connection:
    connection.start()
    session = connection.create_session(mode)
    consumer = session.create_consumer(session.create_queue("work"))
    if listens:
        consumer.listener = process
        while any(each.messages for each in connection.statistics().queues if each.name == "work"):
            pass
    else:
        while (message := consumer.receive(0)) is not None:
            process(message)
"""


@pytest.mark.parametrize(
    ("mode", "how"),  # AUTO without a listener has acknowledged what receive() returns
    [("AUTO", "listens"), ("CLIENT", "receives"), ("INDIVIDUAL", "listens"), ("TRANSACTED", "receives")],
)
def test_a_message_that_kills_its_process_is_set_aside_and_what_was_prefetched_with_it_is_processed(
    tmp_path: Path, mode: str, how: str
) -> None:
    url = f"embedded:{tmp_path}/data?max_deliveries={MOST}"
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue("work"))
        for number in range(MESSAGES):
            producer.send(f"message {number}")
    seen: list[str] = []
    ends = []
    for _ in range(MOST + 1):
        ran = forked_command.run_python(["-c", APPLICATION, url, mode, how])
        seen += ran.stdout.splitlines()
        ends.append(ran.returncode)
    assert ends == [-9] * MOST + [0]
    assert seen.count(POISON) == MOST
    assert set(seen) == {f"message {number}" for number in range(MESSAGES)}
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        connection.start()
        dead = session.create_consumer(session.create_queue("DLQ"))
        found = [message.body for message in iter(lambda: dead.receive(0), None)]
    assert found == [POISON]
