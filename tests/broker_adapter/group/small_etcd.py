"""An HTTP server that answers as etcd's gateway does, or in some wrong way."""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SmallEtcd:
    """A server on a port of its own, until ``close``.

    Args:
        tls: for a server with TLS.

    Attributes:
        requests: paths and bodies that it got.
        connections: how many there were.
        repeats: requests are carried out twice, as by a proxy that repeats them; the second answer is given.
        loses: requests are carried out, and not answered.
        waits: no request is answered until it is set.
        says: status and bytes of all answers, instead of those of an etcd.
        users: with passwords; none: there is no authentication.
        tokens: that are valid.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.connections = 0
        self.repeats = self.loses = False
        self.waits: threading.Event | None = None
        self.says: tuple[int, bytes] | None = None
        self.users: dict[str, str] = {}
        self.tokens: set[str] = set()
        self.revision = 1
        self._lock = threading.Lock()
        self._values: dict[str, tuple[int, str]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_port
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it; nothing listens any more."""
        if self.waits:
            self.waits.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def value(self, key: str) -> bytes | None:
        """What it has."""
        found = {b64decode(name).decode(): b64decode(text) for name, (_, text) in self._values.items()}
        return found.get(key)

    def _handler(small) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def setup(self) -> None:
                small.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                small.requests.append((self.path, body))
                for _ in range(2 if small.repeats else 1):
                    status, answer = small.carry_out(self.path, body, self.headers.get("Authorization"))
                data = json.dumps(answer).encode()
                if small.says:
                    status, data = small.says
                if small.waits:
                    small.waits.wait(60)
                if small.loses:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                self.wfile.flush()

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:
                    pass  # the client has gone

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def carry_out(self, path: str, body: Any, token: str | None) -> tuple[int, Any]:
        """Do what a request wants, one at a time; returns status and answer."""
        with self._lock:
            return self._carry_out(path, body, token)

    def _carry_out(self, path: str, body: Any, token: str | None) -> tuple[int, Any]:
        if path == "/v3/auth/authenticate":
            if not self.users:
                return 412, {"error": "etcdserver: authentication is not enabled", "code": 9}
            if self.users.get(body["name"]) != body["password"]:
                return 400, {"error": "etcdserver: authentication failed, invalid user ID or password", "code": 3}
            self.tokens.add(f"token.{len(self.requests)}")
            return 200, {"header": self._header(), "token": f"token.{len(self.requests)}"}
        if self.users and not token:
            return 400, {"error": "etcdserver: user name is empty", "code": 3}
        if self.users and token not in self.tokens:
            return 401, {"error": "etcdserver: invalid auth token", "code": 16}
        if path == "/v3/kv/range":
            revision, value = self._values.get(body["key"], (0, ""))
            entry = {"key": body["key"], "mod_revision": str(revision), "value": value}
            return 200, {"header": self._header(), **({"kvs": [entry], "count": "1"} if revision else {})}
        [compare], [success] = body["compare"], body["success"]
        assert (compare["target"], compare["result"]) == ("MOD", "EQUAL")
        if self._values.get(compare["key"], (0, ""))[0] != int(compare["mod_revision"]):
            return 200, {"header": self._header()}
        self.revision += 1
        self._values[success["request_put"]["key"]] = (self.revision, success["request_put"]["value"])
        return 200, {"header": self._header(), "succeeded": True, "responses": [{}]}

    def _header(self) -> dict[str, str]:
        return {"cluster_id": "1", "member_id": "2", "revision": str(self.revision), "raft_term": "2"}
