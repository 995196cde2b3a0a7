"""Each sample, run as a reader runs it, prints what it says; those with Spark: ``spark_connector/test_samples.py``."""

from __future__ import annotations

import pytest

from tests import forked_command

EXPECTED = {
    "s01_send_and_receive": """\
TextMessage  'a string becomes a text message'
MapMessage   {'order': 17, 'paid': True}
BytesMessage b'\\x00\\x01\\x02'
""",
    "s02_acknowledge_modes": """\
sent 1 to 8; received 1 to 6, acknowledged after 4, killed; then there is (* redelivered):
  AUTO        7 8
  DUPS_OK     7 8
  CLIENT      5* 6* 7 8
  INDIVIDUAL  1* 2* 3* 5* 6* 7 8
  TRANSACTED  5* 6* 7 8
  NO_ACK      7 8
""",
    "s03_transacted": """\
rolled back: 'not a number', delivery 1
rolled back: 'not a number', delivery 2
given up: 'not a number'
square: 1
square: 4
square: 16
""",
    "s05_request_reply": """\
lift -> LIFT
truck -> TRUCK
""",
    "s06_durable_subscriber": """\
second visit: published while the reader is away
second visit: and another
""",
    "s09_simplified_api": """\
hello
{'order': 17}
committed
""",
    "s11_failover": """\
the connection: Interrupted Restored; reports of ConnectionLostException: 1
each session received 1 to 3, then the server was killed and started again (* redelivered):
  AUTO        1 2 3 | killed | 4* 5*
  CLIENT      1 2 3 | killed | StaleAcknowledgementException | 1* 2* 3* 4* 5*
  DUPS_OK     1 2 3 | killed | 4* 5*
  TRANSACTED  1 2 3 | killed | TransactionRolledBackException | 1* 2* 3* 4* 5*
  INDIVIDUAL  1 2 3 | killed | StaleAcknowledgementException | 1* 2* 3* 4* 5*
""",
    "s10_selectors": """\
abroad: sofa lamp
lorry: desk
lorry: sofa
bicycle: book
bicycle: lamp
selector 'kilograms >' is wrong in column 12, at its end: expected a value or a condition
""",
    "s12_trading_desk": """\
both desks start:
  London (every quote)                            Tokyo (conflated)
  -2 waiting                                      -2 waiting
  -- live --                                      -- live --
a quote:
  London (every quote)                            Tokyo (conflated)
  IBM now 92.75                                   IBM now 92.75
Tokyo is killed; quotes go on:
  London (every quote)                            Tokyo (conflated)
  SAP now 121.00
  IBM now 93.00
London closes, and keeps its queue; quotes go on:
  London (every quote)                            Tokyo (conflated)
  the cache has [('IBM', 93.0), ('SAP', 121.0)]
both come back:
  London (every quote)                            Tokyo (conflated)
  6 waiting                                       5 waiting
  replayed IBM now 93.10                          replayed SAP now 121.00
  replayed IBM now 93.20                          replayed ABB new 45.00
  replayed ABB new 45.00                          replayed IBM now 93.30
  replayed IBM now 93.30                          replayed ABB now 45.50
  replayed ABB now 45.50                          replayed SAP gone
  replayed SAP gone                               -- live --
  -- live --
a quote:
  London (every quote)                            Tokyo (conflated)
  IBM now 94.00                                   IBM now 94.00
the end:
  London (every quote)                            Tokyo (conflated)
  the cache has [('ABB', 45.5), ('IBM', 94.0)]    the cache has [('ABB', 45.5), ('IBM', 94.0)]
""",
    "s13_stock_alerts": """\
low by now: glue, 0 left
low by now: nails, 3 left
screws: 490 left
screws: 9 left
  order: screws, 9 left
screws: 7 left
  still low: screws, 7 left
nails: 400 left
  enough: nails, 400 left
glue: not sold any more
  enough: glue, gone from the list
""",
    "s15_order_service": """\
Ada: lamp (delivery 1), sofa (delivery 1)
Bob: desk (delivery 3), book (delivery 1)
in the DLQ: {'itme': 'chair'}, rejected by a consumer: no item in {'itme': 'chair'}
""",
    "s16_two_sites": """\
connected:
  site 1: prices {'IBM': '92.50'}, 1 orders, 0 waiting
  site 2: prices {'IBM': '92.50'}, 1 orders, 0 waiting
the line is cut, and both work on:
  site 1: prices {'IBM': '93.00'}, 3 orders, 3 waiting
  site 2: prices {'IBM': '94.00', 'SAP': '120.10'}, 1 orders, 2 waiting
connected again:
  site 1: prices {'IBM': '94.00', 'SAP': '120.10'}, 3 orders, 0 waiting
  site 2: prices {'IBM': '94.00', 'SAP': '120.10'}, 3 orders, 0 waiting
""",
}


def run(sample: str, *arguments: str) -> str:
    finished = forked_command.run_python(["-m", f"samples.{sample}", *arguments], timeout=500)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("sample", sorted(EXPECTED))
def test_a_sample_prints_what_it_says(sample: str) -> None:
    assert run(sample) == EXPECTED[sample]


def test_the_listener_sample_hands_out_everything_and_the_refused_message_again() -> None:
    lines = run("s04_listener").splitlines()
    # Where the refused message is redelivered depends on what was under way to the listener.
    assert sorted(lines) == ["handled: bad (redelivered)", "handled: better", "handled: good"]


@pytest.mark.parametrize("sample", ["s12_trading_desk", "s13_stock_alerts"])
def test_a_sample_of_regions_says_what_it_is_when_asked_for_help(sample: str) -> None:
    text = run(sample, "--help")
    assert text.startswith(f"usage: samples.{sample} [-h]")
    assert "A region of " in text
