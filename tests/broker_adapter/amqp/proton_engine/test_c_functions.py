"""The functions of proton that are called for each message."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from broker_adapter.amqp.proton_engine.c_functions import check_engine


def test_a_proton_without_the_functions_of_the_hot_path_is_refused_by_name() -> None:
    check_engine()
    with pytest.raises(ImportError, match=r"lacks .*pn_link_recv.*; install python-qpid-proton==0\.40\.0"):
        check_engine(SimpleNamespace())
