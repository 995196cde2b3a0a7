"""What importing the SDK loads, and what it can do where AMQP cannot be loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

#: Loads the SDK, uses an embedded engine, and prints which of these modules were there after each.
LOADING = """
import json, sys
plain = set(sys.modules)

def loaded():
    ours = ("ack_modes", "broker_adapter", "sdk")
    names = {name.split(".")[0] for name in set(sys.modules) - plain} - {*sys.stdlib_module_names, "cython_runtime"}
    return sorted(name for name in names if name not in ours and name[0] != "_")

def heavy():
    watched = ("asyncio", "cproton", "importlib.metadata", "lmdb", "proton", "ssl")
    return [name for name in watched if name in sys.modules]

import sdk
at_import = loaded(), heavy()
with sdk.ConnectionFactory(sys.argv[1]).create_connection() as connection, connection.create_session() as session:
    connection.start()
    queue = session.create_queue("q")
    session.create_producer(queue).send("x")
    assert session.create_consumer(queue).receive(60).body == "x"
print(json.dumps([*at_import, heavy()]))
"""

#: A process in which some modules cannot be loaded.
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
from sdk import ConnectionFactory, JMSException

ConnectionFactory("embedded:").create_connection().close()
for url in ("amqp://localhost", "amqps://localhost", "failover:(amqp://localhost)"):
    try: ConnectionFactory(url).create_connection()
    except JMSException as error: print(error)
"""


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_importing_the_sdk_loads_no_transport_and_an_embedded_engine_no_amqp(tmp_path: object) -> None:
    others, heavy, heavy_with_engine = json.loads(run(LOADING, f"embedded:{tmp_path}"))
    assert others == ["attr", "attrs", "msgpack"]
    assert heavy == []
    assert heavy_with_engine == ["importlib.metadata", "lmdb"]


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        (
            ["proton", "cproton"],
            "'proton', which cannot be loaded here: .*; install it: pip install python-qpid-proton ",
        ),
        (["cproton_ffi"], "'cproton_ffi', which .*; install it: pip install python-qpid-proton "),
        (["scramp"], "'scramp', which .*; install it: pip install scramp "),
        (["ssl", "_ssl"], "'ssl', which .*; use a Python that was built with OpenSSL "),
        (["asyncio"], r"'asyncio', which cannot be loaded here: import of asyncio halted; None in sys.modules \("),
    ],
)
def test_an_embedded_engine_works_without_amqp_and_an_amqp_url_says_what_to_do(missing: list[str], remedy: str) -> None:
    said = run(WITHOUT, *missing).splitlines()
    assert len(said) == 3
    for line in said:
        assert re.search(rf"AMQP needs the module {remedy}", line), line
        assert line.endswith("(embedded: URLs work without it)")
