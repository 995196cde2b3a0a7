"""What importing the SDK loads, and what it can do where AMQP cannot be loaded."""

from __future__ import annotations

import json
import subprocess
import sys

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

#: A process in which Proton cannot be loaded.
WITHOUT_PROTON = """
import sys
sys.modules["cproton"] = sys.modules["proton"] = None
from sdk import ConnectionFactory, JMSException

ConnectionFactory("embedded:").create_connection().close()
for url in ("amqp://localhost", "failover:(amqp://localhost)"):
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


def test_an_embedded_engine_works_without_proton_and_an_amqp_url_says_what_to_install() -> None:
    said = run(WITHOUT_PROTON).splitlines()
    assert len(said) == 2
    assert all("pip install python-qpid-proton" in line for line in said)
