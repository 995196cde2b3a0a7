"""How much of a connection's input is taken at once."""

from __future__ import annotations

from broker_adapter.server.input_slices import InputSlices

KIB = 1024
MUCH = 4e-6  #: seconds for each byte: 256 KiB take a second


def sizes(slices: InputSlices, data: bytes, seconds_per_byte: float) -> list[int]:
    """The slices in which input is taken that costs so much."""
    assert not slices.rest
    taken = [slices.cut(data)]
    while True:
        slices.took(len(taken[-1]), len(taken[-1]) * seconds_per_byte)
        if not slices.rest:
            assert b"".join(taken) == data
            return [len(each) for each in taken]
        taken.append(slices.next())


def test_input_that_costs_little_is_taken_in_large_slices() -> None:
    slices = InputSlices()
    assert sizes(slices, bytes(256 * KIB), 0.0) == [16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 16 * KIB]
    assert sizes(slices, bytes(256 * KIB), 0.0) == [256 * KIB]


def test_input_that_costs_much_is_taken_in_slices_of_one_turn() -> None:
    found = sizes(InputSlices(), bytes(range(256)) * 256, MUCH)
    assert found[0] == 16 * KIB
    assert set(found[1:-1]) == {5_000}, "which take 20 ms"


def test_a_slice_that_takes_much_too_long_makes_those_of_its_connection_small_for_a_while() -> None:
    slices = InputSlices()
    sizes(slices, bytes(512 * KIB), 0.0)
    assert max(sizes(slices, bytes(256 * KIB), MUCH)) == 256 * KIB, "it could not be known"
    for _ in range(10):
        sizes(slices, bytes(256 * KIB), 0.0)
        assert max(sizes(slices, bytes(256 * KIB), MUCH)) <= 48 * KIB
    for _ in range(100):
        sizes(slices, bytes(512 * KIB), 0.0)
    assert sizes(slices, bytes(256 * KIB), 0.0) == [256 * KIB]


def test_a_slice_has_a_least_size() -> None:
    slices = InputSlices()
    assert set(sizes(slices, bytes(64 * KIB), 1.0)[1:]) == {KIB}
    slices.took(10, 0.0)
    assert slices.size == KIB, "a small input says little"
