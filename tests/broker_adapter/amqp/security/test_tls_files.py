"""Files that TLS needs are read before they are used, so that the error names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_adapter.amqp.security.tls_files import check_readable


def test_a_file_that_can_be_read_and_no_file_are_right(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(b"")
    check_readable("tls_ca_file", str(path))
    check_readable("tls_ca_file", None)


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    with pytest.raises(ValueError, match=r"tls_ca_file='none\.pem' cannot be read: No such file or directory"):
        check_readable("tls_ca_file='none.pem'", missing)
