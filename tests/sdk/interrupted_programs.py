"""Programs that a signal interrupts at the worst of places; each begins with ``BEGIN``."""

BEGIN = """
import os, signal, sys, threading, time
from sdk import *

class Alarm(Exception): pass

def alarm(*_):
    raise Alarm

def hit():
    signal.raise_signal(signal.SIGUSR1)

def once(function, first=hit, behind=False):
    # the function, whose first call begins, or ends, with something
    done = []
    def call(*arguments, **named):
        is_first = not done
        done.append(1)
        if is_first and not behind: first()
        result = function(*arguments, **named)
        if is_first and behind: first()
        return result
    return call

class Hooked:
    # an object with some methods of its own
    def __init__(self, inner, **methods): self.__dict__.update(methods, inner=inner)
    def __getattr__(self, name): return getattr(self.inner, name)

signal.signal(signal.SIGUSR1, alarm)
connection = ConnectionFactory(sys.argv[1]).create_connection()
connection.start()
transport = connection._transport

def session_of(mode="AUTO"): return connection.create_session(AcknowledgeMode[mode])

def filled(count, name="q"):
    session = session_of()
    queue = session.create_queue(name)
    for number in range(count): session.create_producer(queue).send(str(number))
    return queue

def bodies(consumer, seconds=1):
    found = []
    while (message := consumer.receive(seconds)) is not None: found.append(message.body)
    return found

def interrupted(function, *arguments, **named):
    try: function(*arguments, **named)
    except Alarm: return
    raise AssertionError("nothing was interrupted")
"""

ENGINE_FAILS = """
queue = filled(0)
producer = session_of().create_producer(queue)
broker = transport._broker

def persist(effects): raise OSError(5, "Input/output error")

def send():
    try: producer.send("x")
    except JMSException: pass

def handler(*_):
    broker._persist = persist
    threading.Thread(target=send, daemon=True).start()
    while broker.failed is None: time.sleep(0.01)
    began = time.monotonic()
    connection.close()
    took.append(time.monotonic() - began)

took = []
signal.signal(signal.SIGUSR1, handler)
with connection._lock, session_of()._state.lock: hit()
assert took[0] < 5, took
"""

NESTED = """
queue = filled(3)
session = session_of("TRANSACTED")
consumer, producer = session.create_consumer(queue), session.create_producer(queue)
refused = []

def handler(*_):
    for call in (consumer.receive_nowait, lambda: producer.send("x"), session.commit, session.rollback):
        try: call()
        except RuntimeError as error: refused.append(str(error))

signal.signal(signal.SIGUSR1, handler)
session._state.policy = Hooked(session._state.policy, consumed=once(session._state.policy.consumed))
assert bodies(consumer) == ["0", "1", "2"]
assert len(refused) == 4 and "handler of a signal" in refused[0], refused
transport.commit = once(transport.commit)
session.commit()
assert len(refused) == 8, refused
producer.send("x")
session.commit()
assert bodies(consumer) == ["x"]
session.commit()
"""

CLOSE_CONNECTION = """
first, second = session_of(), session_of()
consumer = second.create_consumer(filled(0))
got = []
thread = threading.Thread(target=lambda: got.append(consumer.receive()), daemon=True)
thread.start()
time.sleep(0.2)
transport.end_session = once(transport.end_session)
interrupted(connection.close)
connection.close()
thread.join(30)
assert got == [None]
"""

CLOSE_CONSUMER = """
queue = filled(0)
one, other = session_of(), session_of()
first, second = one.create_consumer(queue, exclusive=True), other.create_consumer(queue, exclusive=True)
if sys.argv[1].startswith("embedded"):
    from broker_adapter.engine.commands.messaging import Detach
    plain, at_detach = transport._call, once(lambda: None)
    transport._call = lambda command, timeout: (type(command) is Detach and at_detach(), plain(command, timeout))[1]
else:
    transport._leave = once(transport._leave)
interrupted(first.close)
first.close()
filled(1)
assert second.receive(10).body == "0"
"""

STOPPED = """
session = session_of()
queue = filled(0)

def handler(*_):
    threading.Thread(target=connection.stop, daemon=True).start()
    time.sleep(0.3)  # until that thread waits for this one
    connection.close()

class Entered:
    # a lock that is held as the signal comes
    def __init__(self, inner): self.inner, self.first = inner, threading.main_thread()
    def __enter__(self):
        self.inner.__enter__()
        if threading.current_thread() is self.first:
            self.first = None
            hit()
    def __exit__(self, *error): return self.inner.__exit__(*error)

signal.signal(signal.SIGUSR1, handler)
session._state.lock = Entered(session._state.lock)
try: session.create_consumer(queue)
except IllegalStateException: pass
"""

COMMITTED = """
from sdk.session_state import Completion

place = sys.argv[2]
told = []

def completed(message, error): told.append((message.body, type(error).__name__ if error else None))

queue = filled(0)
session = session_of("TRANSACTED")
producer = session.create_producer(queue)
for number in range(3): producer.send(str(number), on_completion=completed)
signal.signal(signal.SIGUSR1, lambda *_: session.close())
if place == "as it tells":
    plain, at_first = Completion.__call__, once(lambda: None)
    Completion.__call__ = lambda self, error: (at_first(), plain(self, error))
else:
    transport.commit = once(transport.commit, behind=True)
began = time.monotonic()
session.commit()
assert time.monotonic() - began < 30
assert told == [(str(number), None) for number in range(3)], told
assert bodies(session_of().create_consumer(queue), 0.5)[:3] == ["0", "1", "2"]
"""

OPENING = """
import broker_adapter.engine.broker as module

connection.close()
plain, started, both = module.Broker._restore, threading.Event(), threading.Event()

def slow(self, disk):
    started.set()
    time.sleep(1)
    return plain(self, disk)

def twice():
    for _ in range(2):
        started.wait(30)
        time.sleep(0.2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    both.set()

module.Broker._restore = slow
threading.Thread(target=twice).start()
try:
    try: ConnectionFactory(f"embedded:{sys.argv[2]}").create_connection()
    except Alarm:
        both.wait(30)
        time.sleep(0.2)
except Alarm: pass
from broker_adapter.in_process import _registry
end = time.monotonic() + 30
while any(path for path, _ in _registry) and time.monotonic() < end: time.sleep(0.05)
assert not any(path for path, _ in _registry)
"""

CLOSED_WITHIN = """
a, b = filled(1, "a"), filled(1, "b")
session = session_of("TRANSACTED")
first, second = session.create_consumer(a), session.create_consumer(b)
assert bodies(second) == ["0"]
time.sleep(0.2)
signal.signal(signal.SIGUSR1, lambda *_: first.close())
session._state.policy = Hooked(session._state.policy, delivered=once(session._state.policy.delivered))
assert first.receive(10) is None
session.commit()
assert bodies(session_of().create_consumer(b)) == []
assert bodies(session_of().create_consumer(a)) == ["0"]
"""

CONFIRMING = """
session = session_of()
consumer = session.create_consumer(filled(1))
closed = threading.Event()

def close():
    consumer.close()
    closed.set()

def handler(*_):
    threading.Thread(target=close, daemon=True).start()
    while not session._state.waiters: time.sleep(0.01)  # until that thread waits for the confirmation
    assert consumer._confirms
    raise Alarm

prefetch = type(consumer._prefetch)
while not consumer._prefetch.buffer: time.sleep(0.01)
prefetch.count_used = once(prefetch.count_used)  # behind the last step ahead of the confirmation
signal.signal(signal.SIGUSR1, handler)
interrupted(consumer.receive, 1)
assert closed.wait(5), "it waits for what nobody asks for"
"""

CLOSED_TWICE = """
what, place = sys.argv[2:]
queue = filled(8)
other = ConnectionFactory(sys.argv[1]).create_connection()
other.start()
first = session_of()  # which the connection closes before the other one
session = session_of("CLIENT")
consumer = session.create_consumer(queue, prefetch=10)
for _ in range(2): consumer.receive(10)
end = time.monotonic() + 30
while len(consumer._prefetch.buffer) < 6 and time.monotonic() < end: time.sleep(0.01)
setattr(transport, place, once(getattr(transport, place), behind=place == "drain"))
close = (session if what == "session" else connection).close
interrupted(close)
close()
again = other.create_session(AcknowledgeMode.CLIENT).create_consumer(queue)
found = [again.receive(10) for _ in range(8)]
assert [(each.body, each.delivery_count) for each in found] == [(str(n), 1 + (n < 2)) for n in range(8)], found
other.close()
"""

STARTED = """
connection.stop()
queue_of_start = filled(1)
consumer = session_of().create_consumer(queue_of_start)
transport.credit = once(transport.credit)
interrupted(connection.start)
connection.start()
try: consumer.receive(1)
except IllegalStateException as error: assert "Alarm()" in str(error)
else: raise AssertionError("the session goes on")
consumer = session_of().create_consumer(queue_of_start)
got = []
thread = threading.Thread(target=lambda: got.append(consumer.receive().body), daemon=True)
thread.start()
thread.join(30)
assert got == ["0"], got
"""
