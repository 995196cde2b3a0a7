#!/bin/sh
# CPython 3.11.7: an exception of a signal handler in "with condition:" leaves the lock of a Condition held for good.
#
# Guess, written before the run: "with condition:" is as safe as "with lock:", which a handler that raises (as that of
# Ctrl-C does) never leaves held.  But Condition.__enter__ is a function of Python: the handler may run behind its
# acquire and ahead of the block, and then nobody releases.  It is safe to take the condition's lock with "with".
. "$(dirname "$0")/common.sh"
cat >run.py <<'EOF'
import signal
import threading


class Alarm(Exception):
    pass


def handler(*_):
    raise Alarm


def held(make):
    """How often the lock is held after a handler has raised out of a with statement."""
    count = 0
    for _ in range(2000):
        lock = threading.Lock()
        guard = make(lock)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0002)
            while True:
                with guard:
                    pass
        except Alarm:
            count += lock.locked()
    return count


signal.signal(signal.SIGALRM, handler)
print(f"with lock: held after {held(lambda lock: lock)} of 2000")
print(f"with condition: held after {'more than 20' if held(threading.Condition) > 20 else 'few'} of 2000")
EOF
python3 run.py >seen
expect seen <<'EOF'
with lock: held after 0 of 2000
with condition: held after more than 20 of 2000
EOF
