"""The record of a group in etcd, by its JSON gateway."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import urllib3

from broker_adapter.errors import ConnectionLostException
from broker_adapter.group.coordinators import Found, Token

_SECONDS: Final = 2.0


class EtcdCoordinator:
    """The port :class:`broker_adapter.group.coordinators.Coordinator`."""

    def __init__(self, urls: str, key: str) -> None:
        self._urls = [each.strip().rstrip("/") for each in urls.split(",") if each.strip()]
        self._key = base64.b64encode(key.encode()).decode()
        self._pool = urllib3.PoolManager(timeout=_SECONDS, retries=False)

    def read(self) -> Found:
        answer = self._ask("/v3/kv/range", {"key": self._key})
        for each in answer.get("kvs", ()):
            return Found(int(each["mod_revision"]), base64.b64decode(each["value"]))
        return Found(0, b"")

    def swap(self, token: Token, data: bytes) -> Token | None:
        answer = self._ask(
            "/v3/kv/txn",
            {
                "compare": [{"key": self._key, "target": "MOD", "result": "EQUAL", "mod_revision": str(token)}],
                "success": [
                    {"request_put": {"key": self._key, "value": base64.b64encode(data).decode()}},
                ],
            },
        )
        return int(answer["header"]["revision"]) if answer.get("succeeded") else None

    def close(self) -> None:
        self._pool.clear()

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        error: Exception | None = None
        for each in list(self._urls):
            try:
                answer = self._pool.request("POST", each + path, body=json.dumps(body))
                if answer.status == 200:
                    found: dict[str, Any] = json.loads(answer.data)
                    return found
                error = ConnectionLostException(f"{each} says {answer.status}: {answer.data[:200]!r}")
            except urllib3.exceptions.HTTPError as failed:
                error = failed
            self._urls.append(self._urls.pop(0))
        raise ConnectionLostException(f"etcd does not answer: {error}") from error
