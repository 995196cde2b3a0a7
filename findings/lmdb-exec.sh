#!/bin/sh
# py-lmdb 3.0.0: a program that replaces itself (os.execv) while an environment is open still has its data.mdb open.
#
# Guess, written before the run: since PEP 446 what a Python process opens is not inherited by exec, and LMDB opens its
# lock file with close-on-exec; so the new program has neither file.  A file of that name that is replaced by another
# one afterwards gives back its room on the disk.
. "$(dirname "$0")/common.sh"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check lmdb==3.0.0
cat >first.py <<'EOF2'
import os
import sys

import lmdb

environment = lmdb.open("store")
with environment.begin(write=True) as transaction:
    transaction.put(b"key", b"value")
plain = open("plain", "w")
os.execv(sys.executable, [sys.executable, "second.py"])
EOF2
cat >second.py <<'EOF2'
import os

found = []
for number in os.listdir("/proc/self/fd"):
    try:
        found.append(os.path.basename(os.readlink(f"/proc/self/fd/{number}")))
    except FileNotFoundError:
        pass
for name in ("plain", "lock.mdb", "data.mdb"):
    print(f"{name}: open {found.count(name)} times in the new program")
EOF2
venv/bin/python first.py >output
expect output <<'EOF2'
plain: open 0 times in the new program
lock.mdb: open 0 times in the new program
data.mdb: open 1 times in the new program
EOF2
