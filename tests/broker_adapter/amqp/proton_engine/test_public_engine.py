"""The functions of proton that are called for each message."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import cproton_ffi
import pytest

from broker_adapter.amqp.proton_engine.public_engine import check_engine, may_lend_credit


def test_a_proton_without_the_functions_of_the_hot_path_is_refused_by_name() -> None:
    check_engine()
    with pytest.raises(ImportError, match=r"lacks .*pn_link_recv.*; install python-qpid-proton==0\.40\.0"):
        check_engine(SimpleNamespace())


@pytest.mark.parametrize(("found", "lent"), [(b"x pn_link_is_receiver(receiver) x", False), (b"x", True)])
def test_no_credit_is_lent_to_a_build_with_assertions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: bytes, lent: bool
) -> None:
    (tmp_path / "proton.so").write_bytes(found)
    monkeypatch.setattr(cproton_ffi, "__file__", str(tmp_path / "proton.so"))

    assert may_lend_credit.__wrapped__() is lent
