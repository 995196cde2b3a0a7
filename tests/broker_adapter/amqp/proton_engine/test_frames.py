"""Which frames may come, and which may not: without proton."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp.messages.values import Described, Symbol, UByte, UInt, ULong, UShort
from broker_adapter.amqp.proton_engine.frames import (
    MAX_PERFORMATIVE_BYTES,
    FrameError,
    FrameRules,
    disposed,
    has_no_array,
    long_list,
)
from broker_adapter.amqp.proton_engine.frames import begins as begins_in
from tests.broker_adapter.amqp import frames
from tests.broker_adapter.amqp.frames import (
    attach,
    begin,
    close,
    detach,
    disposition,
    end,
    flow,
    frame,
    in_long_form,
    open_frame,
    raw_frame,
    transfer,
)

CHANNELS, LINKS = 4, 3


def checked(*sent: bytes, begun: tuple[int, ...] = ()) -> FrameRules:
    """The rules after these frames, which must all be allowed.  ``begun``: channels of begins of ours."""
    rules = FrameRules(max_sessions=CHANNELS, max_links=LINKS)
    for channel in begun:
        rules.begun(channel)
    for each in sent:
        rules.check(each, 0, len(each))
    return rules


def refused(rules: FrameRules, sent: bytes) -> tuple[str, str]:
    """The condition and the reason for which a frame is refused."""
    with pytest.raises(FrameError) as refusal:
        rules.check(sent, 0, len(sent))
    assert refusal.value.error.condition == refusal.value.condition
    return refusal.value.condition, str(refusal.value)


OPENED = open_frame()
SESSION = (OPENED, begin(1))
LINKED = (*SESSION, attach(1, 0, "s"), attach(1, 2, "r", receives=True))


def test_all_that_a_well_behaved_peer_sends_is_allowed() -> None:
    rules = checked(
        *LINKED,
        begin(0, 7),
        raw_frame(0, b""),
        flow(1),
        flow(1, 2, 10),
        transfer(1, 0, 0, b"t", b"payload"),
        transfer(1, 0, 1, b"t", b"part", more=True, txn_id=b"id"),
        transfer(1, 0, None, None, b"rest"),
        disposition(1, True, 0, 3),
        disposition(1, False, 0, state=None),
        detach(1, 0),
        attach(1, 0, "again"),
        end(1, "amqp:internal-error"),
        begin(1),
        attach(1, 0, "s"),
        end(0),
        close(),
        raw_frame(0, b""),
        begun=(7,),
    )
    assert "channels=[1] links=1" in repr(rules)


@pytest.mark.parametrize(
    ("before", "sent", "condition", "reason"),
    [
        ((), begin(0), "amqp:illegal-state", "expected an open frame first, got begin"),
        ((), close(), "amqp:illegal-state", "expected an open frame first, got close"),
        ((OPENED,), open_frame(), "amqp:illegal-state", "a second open frame"),
        ((), frame(1, frames.OPEN, "c"), "amqp:connection:framing-error", "belongs on 0"),
        (SESSION, begin(1), "amqp:illegal-state", "channel 1, which has a session already"),
        (SESSION, begin(CHANNELS), "amqp:connection:framing-error", "above the greatest channel, 3"),
        (SESSION, begin(2, 0), "amqp:invalid-field", "answers channel 0, where no session waits"),
        (SESSION, begin(2, 1), "amqp:invalid-field", "answers channel 1, where no session waits"),
        (SESSION, attach(2, 0, "s"), "amqp:illegal-state", "attach on channel 2, which has no session"),
        (SESSION, flow(0), "amqp:illegal-state", "flow on channel 0, which has no session"),
        (SESSION, transfer(3, 0, 0, b"t", b"x"), "amqp:illegal-state", "transfer on channel 3"),
        (SESSION, disposition(3, True, 0), "amqp:illegal-state", "disposition on channel 3"),
        (SESSION, detach(3, 0), "amqp:illegal-state", "detach on channel 3"),
        ((*SESSION, end(1)), end(1), "amqp:illegal-state", "end on channel 1, which has no session"),
        (LINKED, attach(1, 0, "other"), "amqp:session:handle-in-use", "handle 0, which channel 1 has in use"),
        (LINKED, attach(1, 0, "other", receives=True), "amqp:session:handle-in-use", "handle 0"),
        (LINKED, attach(1, 1 << 31, "other"), "amqp:connection:framing-error", "above the greatest"),
        ((*LINKED, attach(1, 1, "t")), attach(1, 3, "u"), "amqp:resource-limit-exceeded", "the limit of 3"),
        (LINKED, flow(1, 1, 5), "amqp:session:unattached-handle", "flow with handle 1"),
        (LINKED, transfer(1, 1, 0, b"t", b"x"), "amqp:session:unattached-handle", "transfer with handle 1"),
        (LINKED, transfer(1, 2, 0, b"t", b"x"), "amqp:not-allowed", "on whose link the other side receives"),
        (LINKED, detach(1, 1), "amqp:session:unattached-handle", "detach with handle 1"),
        ((*LINKED, detach(1, 0)), detach(1, 0), "amqp:session:unattached-handle", "detach with handle 0"),
        ((*LINKED, detach(1, 0)), transfer(1, 0, 0, b"t", b"x"), "amqp:session:unattached-handle", "handle 0"),
        ((*LINKED, end(1), begin(1)), flow(1, 0, 5), "amqp:session:unattached-handle", "handle 0"),
        ((*LINKED, close()), flow(1), "amqp:illegal-state", "flow after the close"),
        ((OPENED, close()), close(), "amqp:illegal-state", "close after the close"),
    ],
)
def test_a_frame_that_does_not_fit_what_is_in_use_is_refused(
    before: tuple[bytes, ...], sent: bytes, condition: str, reason: str
) -> None:
    found = refused(checked(*before), sent)
    assert found[0] == condition
    assert reason in found[1]


def test_a_begin_of_ours_is_answered_once() -> None:
    rules = checked(OPENED, begin(3, 0), begun=(0, 1))
    assert refused(rules, begin(2, 0))[0] == "amqp:invalid-field"
    rules.check(begin(2, 1), 0, len(begin(2, 1)))
    assert refused(rules, begin(1, 1))[0] == "amqp:invalid-field"
    rules.begun(1)
    rules.check(begin(1, 1), 0, len(begin(1, 1)))


def test_links_that_are_detached_or_ended_make_room_for_others() -> None:
    rules = checked(*SESSION)
    for _ in range(10):
        for each in (begin(0), attach(0, 0, "a"), attach(1, 0, "b"), attach(1, 1, "c"), detach(1, 0), detach(1, 1)):
            rules.check(each, 0, len(each))
        rules.check(end(0), 0, len(end(0)))
    assert "links=0" in repr(rules)


@pytest.mark.parametrize(
    ("sent", "condition", "reason"),
    [
        (b"\x00\x00\x00\x07\x02\x00\x00", "amqp:connection:framing-error", "malformed frame of 7 bytes"),
        (b"\x00\x00\x00\x08\x01\x00\x00\x00", "amqp:connection:framing-error", "malformed frame of 8 bytes"),
        (b"\x00\x00\x00\x08\x03\x00\x00\x00", "amqp:connection:framing-error", "malformed frame of 8 bytes"),
        (raw_frame(0, b"", kind=1), "amqp:connection:framing-error", "unknown type 1"),
        (raw_frame(0, b"\x00\x53\x41\xc0\x01\x00", kind=1), "amqp:connection:framing-error", "unknown type 1"),
        (raw_frame(0, b"\x40"), "amqp:decode-error", "not a described value"),
        (raw_frame(0, b"\x00\xa3\x09amqp:open\x45"), "amqp:decode-error", "descriptor"),
        (raw_frame(0, b"\x00\x53\x10\xc1\x01\x00"), "amqp:decode-error", "not a list"),
        (raw_frame(0, b"\x00\x53\x10\xc0\x05\x01\x40"), "amqp:decode-error", "does not fit"),
        (raw_frame(0, b"\x00\x53\x10\xc0\x00\x00"), "amqp:decode-error", "does not fit"),
        (raw_frame(0, b"\x00\x53\x10\xd0\x00\x00\x00\x03\x00\x00\x00\x00"), "amqp:decode-error", "does not fit"),
        (raw_frame(0, b"\x00\x53\x10\xc0\x04\x01\xa1\x00\x40"), "amqp:decode-error", "left over"),
        (raw_frame(0, b"\x00\x53\x10"), "amqp:decode-error", None),
        (raw_frame(0, b"\x00"), "amqp:decode-error", None),
        (raw_frame(0, b"\x00\x53\x99\x45"), "amqp:not-implemented", "unknown performative 0x99"),
        (frame(0, frames.OPEN), "amqp:decode-error", "open has no container-id"),
        (frame(0, frames.OPEN, None), "amqp:decode-error", "field container-id of open has type 0x40"),
        (frame(0, frames.OPEN, Symbol("c")), "amqp:decode-error", "field container-id"),
        (frame(0, frames.OPEN, "c", None, ULong(512)), "amqp:decode-error", "field max-frame-size"),
        (frame(0, frames.OPEN, "c", "h" * MAX_PERFORMATIVE_BYTES), "amqp:resource-limit-exceeded", "larger than"),
        (frame(0, frames.OPEN, "c", [[[]]] * 20_000), "amqp:decode-error", "more values than the limit"),
    ],
)
def test_a_malformed_frame_is_refused(sent: bytes, condition: str, reason: str | None) -> None:
    found = refused(checked(), sent)
    assert found[0] == condition
    assert reason is None or reason in found[1]


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (frame(1, frames.BEGIN, UInt(0), UInt(0), UInt(1), UInt(1)), "remote-channel of begin"),
        (frame(1, frames.BEGIN, "0", UInt(0), UInt(1), UInt(1)), "remote-channel of begin"),
        (frame(1, frames.ATTACH, "n", UShort(0), False), "handle of attach"),
        (frame(1, frames.ATTACH, "n", None, False), "handle of attach"),
        (frame(1, frames.ATTACH, b"n", UInt(0), False), "name of attach"),
        (frame(1, frames.ATTACH, "n", UInt(0), UByte(1)), "role of attach"),
        (frame(1, frames.FLOW, None, UInt(1), UInt(1), UInt(1), ULong(0)), "handle of flow"),
        (frame(1, frames.FLOW, Described(ULong(0), UInt(1)), UInt(1), UInt(1), UInt(1), UInt(0)), "next-incoming-id"),
        (frame(1, frames.TRANSFER, None, UInt(0), b"t"), "handle of transfer"),
        (frame(1, frames.TRANSFER, 0, UInt(0), b"t"), "handle of transfer"),
        (frame(1, frames.TRANSFER, UInt(0), UInt(0), "t"), "delivery-tag of transfer"),
        (frame(1, frames.DISPOSITION, UInt(1), UInt(0)), "role of disposition"),
        (frame(1, frames.DISPOSITION, True, None), "first of disposition"),
        (frame(1, frames.DETACH, "0"), "handle of detach"),
    ],
)
def test_a_field_of_another_type_is_refused_since_proton_would_read_its_default(sent: bytes, field: str) -> None:
    condition, reason = refused(checked(*LINKED), sent)
    assert condition == "amqp:decode-error"
    assert field in reason


@pytest.mark.parametrize("handle", [0, 1, 255, 256, 70_000])
def test_fields_may_be_in_any_of_their_encodings(handle: int) -> None:
    rules = checked(*SESSION, attach(1, handle, "s"))
    wide = b"\x70" + handle.to_bytes(4)
    for body in (wide, wide + b"\x52\x00" if handle < 256 else wide):
        listed = b"\xd0" + (4 + len(body)).to_bytes(4) + (1 if body == wide else 2).to_bytes(4) + body
        sent = raw_frame(1, b"\x00\x80" + frames.TRANSFER.to_bytes(8) + listed + b"payload")
        assert rules.check(sent, 0, len(sent)) == frames.TRANSFER


def test_the_sizes_of_attaches_are_told_in_their_order() -> None:
    sent = [attach(1, 0, "a"), attach(1, 1, "b" * 100)]
    assert [size for size, _ in checked(*SESSION, *sent).attaches] == [len(each) for each in sent]


STEPS = st.lists(
    st.one_of(
        st.builds(begin, st.integers(0, 4), st.none() | st.integers(0, 3)),
        st.builds(end, st.integers(0, 4)),
        st.builds(attach, st.integers(0, 3), st.integers(0, 3), st.just("n"), receives=st.booleans()),
        st.builds(detach, st.integers(0, 3), st.integers(0, 3)),
        st.just(close()),
    ),
    max_size=30,
)


@given(STEPS)
def test_the_tables_of_first_octets_say_the_same_as_the_check(steps: list[bytes]) -> None:
    rules = checked(OPENED, begun=(0, 2))
    for each in steps:
        try:
            rules.check(each, 0, len(each))
        except FrameError:
            pass
        for channel in range(5):
            for handle in range(4):
                sent = transfer(channel, handle, 0, b"t", b"x")
                for form in (sent, in_long_form(sent)):
                    assert (handle in rules.sending.get(form[4:12], ())) is _passes(rules, form)
            sent = disposition(channel, True, 0)
            for form in (sent, in_long_form(sent)):
                assert (form[4:12] in rules.disposing) is _passes(rules, form)


def _passes(rules: FrameRules, sent: bytes) -> bool:
    try:
        rules.check(sent, 0, len(sent))
    except FrameError:
        return False
    return True


@given(st.binary(max_size=80), st.booleans())
def test_any_octets_are_a_frame_or_are_refused(body: bytes, described: bool) -> None:
    assert _passes(checked(*LINKED), raw_frame(1, b"\x00\x53" + body if described else body)) in (True, False)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (b"\x41\x70\x00\x00\x01\x00\x40", (True, 256, 256)),  # as proton writes one delivery
        (b"\x42\x43\x52\x07\x41", (False, 0, 7)),
        (b"\x56\x01\x52\x03\x70\x00\x00\x00\x05\x41", (True, 3, 5)),
        (b"\x56\x00\x52\x03", (False, 3, 3)),
        (b"\x41\x52\x03\x40\x41", (True, 3, 3)),
        (b"\x40\x52\x03\x52\x04", None),  # no role
        (b"\x41\x40\x52\x04\x41", None),  # no first delivery
        (b"\x41\x52\x03\x53\x24\x45", None),  # what follows is no number
        (b"\x41\x70\x00\x00", None),  # cut off
        (b"\x41\x52", None),
        (b"", None),
        (b"\x41\x70\x00\x00\x01\x00\x40\xe0", None),  # may have an array
        (b"\x41\xf0\x00\x00\x01\x00\x40", None),
    ],
)
def test_the_deliveries_of_a_disposition_are_told_by_its_octets(
    fields: bytes, found: tuple[bool, int, int] | None
) -> None:
    assert disposed(fields) == found


def test_a_performative_may_stand_for_much_only_where_it_may_have_an_array() -> None:
    assert has_no_array(b"\xe0\x01\x02\xf0", 1, 3)
    assert not has_no_array(b"\xe0\x01\x02\xf0", 0, 3)
    assert not has_no_array(b"\xe0\x01\x02\xf0", 1, 4)


def test_a_list_in_its_long_form_says_where_it_ends() -> None:
    sent = in_long_form(transfer(1, 2, 3, b"t", b"payload"))
    count, first, stop = long_list(sent, 12)
    assert (count, sent[first : first + 2], sent[stop:]) == (10, b"\x52\x02", b"payload")


def test_begins_of_ours_that_answer_none_are_found_by_their_octets() -> None:
    def frame(channel: int, performative: bytes) -> bytes:
        return (8 + len(performative)).to_bytes(4) + b"\x02\x00" + channel.to_bytes(2) + performative

    begin = b"\x00\x53\x11\xc0\x05\x04\x40\x43\x43\x43"
    answer = b"\x00\x53\x11\xc0\x06\x04\x60\x00\x01\x43\x43\x43"
    attach = b"\x00\x53\x12\xc0\x05\x04\x40\x43\x43\x43"
    data = frame(3, begin) + frame(4, answer) + frame(5, attach) + frame(258, begin)
    assert list(begins_in(data)) == list(begins_in(b"AMQP\x00\x01\x00\x00" + data)) == [3, 258]
    assert list(begins_in(b"")) == []


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ((open_frame("a\0b"),), "container-id of open"),
        ((frame(0, frames.OPEN, "a", "host\0"),), "hostname of open"),
        ((*SESSION, attach(1, 1, "sub\0evil")), "name of attach"),
        ((*SESSION, attach(1, 1, "s", "orders\0eu")), "target of attach"),
        ((*SESSION, attach(1, 1, "r", "\0", receives=True)), "source of attach"),
    ],
)
def test_a_name_with_nul_is_refused_and_not_cut(sent: tuple[bytes, ...], field: str) -> None:
    condition, reason = refused(checked(*sent[:-1]), sent[-1])
    assert condition == "amqp:invalid-field"
    assert f"field {field} has the character NUL" in reason
