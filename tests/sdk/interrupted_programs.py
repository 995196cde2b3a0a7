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

OWN_ERROR = """
def handler(*_): raise OperationTimedOutException("the time-out of the application")

queue = filled(3)
session = session_of(sys.argv[2])
consumer = session.create_consumer(queue)
signal.signal(signal.SIGUSR1, handler)
session._state.policy = Hooked(session._state.policy, consumed=once(session._state.policy.consumed))
try: consumer.receive(10)
except OperationTimedOutException: pass
else: raise AssertionError("nothing was interrupted")
assert bodies(consumer) == ["0", "1", "2"]
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

CLOSE_OTHERS = """
queue = filled(1)
session = session_of()
producer = session.create_producer(queue)
link = producer._link
session._state.detach = once(session._state.detach)
interrupted(producer.close)
producer.close()
assert link not in transport._senders
browser = session.create_browser(queue)
look = iter(browser)
next(look)
transport.detach = once(transport.detach)
interrupted(browser.close)
browser.close()
assert not browser._enumerations
context = ConnectionFactory("embedded:").create_context()
shared = context._shared
type(shared).leave = once(type(shared).leave, behind=len(sys.argv) > 2)
interrupted(context.close)
context.close()
assert shared.connection._lifecycle.state.name == "CLOSED"
"""

COMPLETIONS = """
from collections import deque

class Interrupted(deque):
    def append(self, thing):
        super().append(thing)
        if armed: armed.pop(); hit()

armed, told, runs = [1], [], threading.Event()
session = session_of()
producer = session.create_producer(filled(0))
session._state.completions = Interrupted()
interrupted(producer.send, "withdrawn", on_completion=lambda message, error: told.append(message.body))

def slow(message, error):
    runs.set()
    time.sleep(0.3)
    told.append(message.body)

def send(*arguments):  # interrupted when its answer is being told already
    plain(*arguments)
    assert runs.wait(30)
    hit()

plain, transport.send = transport.send, send
interrupted(producer.send, "told", on_completion=slow)
transport.send = plain
for number in range(3): producer.send(str(number), on_completion=lambda message, error: told.append(message.body))
session.close()
assert told == ["told", "0", "1", "2"], told
"""

CREDIT = """
prefetch, timeout = int(sys.argv[2]), float(sys.argv[3])
queue = filled(20)
consumer = session_of("CLIENT").create_consumer(queue, prefetch=prefetch)
assert consumer.receive(30).body == "0"
found, plain = ["0"], transport.credit

def receive():
    while (message := consumer.receive(timeout)) is not None: found.append(message.body)

transport.credit = once(plain)
interrupted(receive)
receive()
assert found == [str(number) for number in range(20)], found
"""

SETTLED = """
import sdk.receiving.consumer as module

mode, place = sys.argv[2:]
queue = filled(120)
session = session_of(mode)
consumer = session.create_consumer(queue)
found = []

def receive():
    while (message := consumer.receive(1)) is not None: found.append(message.body)

for _ in range(99): found.append(consumer.receive(30).body)
if place == "as it is made": module.message_of = once(module.message_of)
else: session._state.hand_over = once(session._state.hand_over)
interrupted(receive)
receive()
missing = {str(number) for number in range(120)} - set(found)
assert not missing if place == "as it is made" else len(missing) <= 1, missing
session.close()
left = session_of().create_consumer(queue).receive(1)
assert left is None, left.body
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

DROPPED = """
import gc, warnings
warnings.simplefilter("ignore")
queue = filled(9)
session = session_of("CLIENT")
consumer = session.create_consumer(queue)
assert consumer.receive(30).body == "0"
transport.detach = once(transport.detach)
interrupted(consumer.close)
del consumer
gc.collect()
assert bodies(session_of().create_consumer(queue), 5) == [str(number) for number in range(1, 9)]
"""

REQUESTOR = """
from sdk import Requestor
session = session_of()
requestor = Requestor(session, filled(0))
transport.detach = once(transport.detach)
interrupted(requestor.close)
requestor.close()
assert not [each.name for each in connection.statistics().queues if each.name.startswith("temporary")]
"""

COMMITTED = """
from sdk.session_state import Completion

does, place = sys.argv[2:]
told = []

def completed(message, error): told.append((message.body, type(error).__name__ if error else None))

queue = filled(0)
session = session_of("TRANSACTED")
producer = session.create_producer(queue)
for number in range(3): producer.send(str(number), on_completion=completed)
if does == "closes": signal.signal(signal.SIGUSR1, lambda *_: session.close())
if place == "as it tells":
    plain, at_first = Completion.__call__, once(lambda: None)
    Completion.__call__ = lambda self, error: (at_first(), plain(self, error))
else:
    transport.commit = once(transport.commit, behind=True)
began = time.monotonic()
if does == "closes":
    session.commit()
else:
    interrupted(session.commit)
    producer.send("3", on_completion=completed)
    session.commit()
    session.close()
assert time.monotonic() - began < 30
# Where commit() was interrupted before it had its answer, the result is not known.
first = None if (does, place) != ("raises", "behind the broker") else "TransactionInDoubtException"
assert told == [(str(number), first) for number in range(3)] + [("3", None)] * (does == "raises"), told
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

GIVEN_BACK = """
queue = filled(5)
session = session_of("CLIENT")
consumer = session.create_consumer(queue)
assert consumer.receive(10).body == "0"
plain, answers = transport.drain, []

def drain(*arguments):
    if not answers:
        answers.append(1)
        raise OperationTimedOutException("the network stalls")
    return plain(*arguments)

transport.drain = drain
session.recover()
time.sleep(0.2)
session._state.pass_over = once(session._state.pass_over, behind=True)
interrupted(consumer.receive, 1)
assert bodies(consumer) == ["0", "1", "2", "3", "4"]
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

STOPPING = """
class Stop(RuntimeError): pass

def stop(*_):
    raise Stop

def stopped(function, *arguments, **named):
    try: function(*arguments, **named)
    except Stop: return
    raise AssertionError("the handler's error is nowhere")

queue = filled(2)
session = session_of("CLIENT")
producer, consumer = session.create_producer(queue), session.create_consumer(queue)
browser = session.create_browser(queue)
message = consumer.receive(10)
signal.signal(signal.SIGUSR1, stop)
plain = session._state.disown
for call in (lambda: producer.send("x"), message.acknowledge, session.recover, lambda: next(iter(browser)),
             lambda: consumer.receive(10), lambda: setattr(consumer, "listener", None),
             lambda: session.create_producer(queue), session.close):
    session._state.disown = once(plain, behind=True)
    stopped(call)
session._state.disown = plain
"""

LEFT_OWNED = """
session = session_of()
producer, consumer = session.create_producer(filled(0)), session.create_consumer(filled(0))
plain = session._state.own
session._state.own = once(plain, behind=True)
interrupted(producer.send, "x")
session._state.own = once(plain, behind=True)
interrupted(consumer.receive, 1)
got = threading.Event()
session._state.own = once(plain, behind=True)
interrupted(session.create_browser, session.create_queue("q"))
consumer.listener = lambda message: got.set()
filled(1)
assert got.wait(30)
"""

TAKEN_BACK = """
mode, place, then = sys.argv[2:]
queue = filled(6)
session = session_of(mode)
consumer = session.create_consumer(queue)
held = [consumer.receive(10) for _ in range(3)]
end = time.monotonic() + 30
while len(consumer._prefetch.buffer) < 3 and time.monotonic() < end: time.sleep(0.01)
take_back = session.rollback if mode == "TRANSACTED" else session.recover
if place == "drain": transport.drain = once(transport.drain, behind=True)
if place == "settle": transport.settle = once(transport.settle)
if place == "credit": transport.credit = once(transport.credit)
interrupted(take_back)
if then == "again" or (then == "listener" and place != "credit"):
    take_back()
elif then == "ends":
    try: session.commit() if mode == "TRANSACTED" else held[0].acknowledge()
    except (TransactionRolledBackException, StaleAcknowledgementException) as error:
        assert "giving back was interrupted" in str(error), error
    else: raise AssertionError("what was being given back was acknowledged")
got = []
if then == "closes":
    session.close()
    consumer = session_of().create_consumer(queue)
if then == "listener":
    heard = threading.Event()
    consumer.listener = lambda message: (got.append(message), len(got) == 6 and heard.set())
    assert heard.wait(30), got
else:
    thread = threading.Thread(target=lambda: got.extend(consumer.receive() for _ in range(6)), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), got
assert [(each.body, each.delivery_count) for each in got] == [(str(n), 1 + (n < 3)) for n in range(6)], got
if then in ("again", "ends"):
    if mode == "TRANSACTED": session.commit()
    else: [each.acknowledge() for each in got]
    session.close()
    assert bodies(session_of().create_consumer(queue), 0.5) == []
"""

LEFT_IN_BUFFER = """
mode, timeout = sys.argv[2:]
queue = filled(6)
session = session_of(mode)
consumer = session.create_consumer(queue)
for _ in range(3): consumer.receive(10)
end = time.monotonic() + 30
while len(consumer._prefetch.buffer) < 3 and time.monotonic() < end: time.sleep(0.01)
transport.settle = once(transport.settle, behind=True)
interrupted(session.rollback if mode == "TRANSACTED" else session.recover)
got = [consumer.receive(float(timeout)) for _ in range(6)]
assert [(each.body, each.delivery_count) for each in got] == [(str(n), 1 + (n < 3)) for n in range(6)], got
assert bodies(consumer, 0.5) == []
"""

ACKNOWLEDGED = """
mode, place = sys.argv[2:]
queue = filled(3)
session = session_of(mode)
consumer = session.create_consumer(queue)
messages = [consumer.receive(10) for _ in range(3)]
if place == "ahead": session._state.hand_over = once(session._state.hand_over)
else: transport.settle = once(transport.settle, behind=place == "behind")
interrupted(messages[0].acknowledge)
for message in messages: message.acknowledge()
session.close()
assert bodies(session_of().create_consumer(queue), 0.5) == []
"""

CONFIRMED = """
session = session_of("CLIENT")
consumer = session.create_consumer(filled(1))
message, asked, plain = consumer.receive(10), [], transport.confirm
transport.confirm = once(lambda *arguments, **named: asked.append(plain(*arguments, **named)))
interrupted(message.acknowledge)
for _ in range(2): message.acknowledge()
assert len(asked) == 1, asked
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
consumer = session.create_consumer(queue)
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
consumer = session_of().create_consumer(filled(1))
transport.credit = once(transport.credit)
interrupted(connection.start)
connection.start()
got = []
thread = threading.Thread(target=lambda: got.append(consumer.receive().body), daemon=True)
thread.start()
thread.join(30)
assert got == ["0"], got
"""
