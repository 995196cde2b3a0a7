"""A copy follows a store: images, commits, what it takes back, and what it refuses."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.operations import copies
from broker_adapter.engine.operations.copies import MOST_SPANS
from broker_adapter.engine.records.layout import STORE_VERSION, UNIQUE
from broker_adapter.engine.records.tail import encode_commit
from broker_adapter.engine.store import deltas
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.errors import ResourceAllocationException, StoreException
from broker_adapter.group import following
from broker_adapter.group.copy_files import CopyFiles
from broker_adapter.group.following import Following, NoAnswer, Standing
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.store.test_lmdb_writes import largest_file
from tests.broker_adapter.engine.storing import damage
from tests.broker_adapter.group.copying import URL, Before, Copy, Primary, break_off

MIB = 1024 * 1024
Start = Callable[..., Primary]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Makes primaries, which are closed at the end."""
    made: list[Primary] = []

    def make(name: str = "primary", **settings: Any) -> Primary:
        made.append(Primary(tmp_path / name, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "copy")


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers have a few records, and records are large with a few bytes; so are transactions of an image."""
    monkeypatch.setattr(copies, "ANSWER_BYTES", 500)
    monkeypatch.setattr(copies, "PIECE_BYTES", 300)
    monkeypatch.setattr(deltas, "_FULL_BYTES", 4000)
    for each in (deltas, following):
        monkeypatch.setattr(each, "LARGE_BYTES", 1000)
    monkeypatch.setattr(following, "MOST_KEYS", 3)
    monkeypatch.setattr(following, "_WRITTEN_BYTES", 1000)


def sent(primary: Primary, at: Mapping[int, int]) -> Before:
    """Have the primary write ahead of some questions: so many messages by the number of the question."""
    asked = 0

    def before(_operation: str, _arguments: Mapping[str, Any]) -> None:
        nonlocal asked
        asked += 1
        if asked in at:
            primary.send(*[f"{asked} {number}" for number in range(at[asked])], to=f"q{asked}")

    return before


def test_a_copy_has_all_records_and_follows(start: Start, copy: Copy) -> None:
    primary = start()
    primary.send("before")
    copy.follow(primary)
    primary.send("after")
    copy.follow(primary)
    assert "read_image" not in copy.asked
    assert primary.take() == [b"before", b"after"]
    copy.follow(primary)


def test_a_transaction_larger_than_an_answer_arrives_whole(start: Start, copy: Copy) -> None:
    primary = start()
    copy.follow(primary)
    primary.send(*[bytes([number]) * MIB for number in range(50)])
    copy.follow(primary)
    assert "read_image" not in copy.asked


def test_a_message_of_20_mib_arrives_whole_in_an_image_and_as_a_commit(start: Start, copy: Copy) -> None:
    primary = start(max_message_bytes=32 * MIB)
    primary.send(random.Random(0).randbytes(20 * MIB))
    copy.follow(primary)
    primary.send(random.Random(1).randbytes(20 * MIB + 1))
    copy.follow(primary)
    assert copy.asked.count("read_piece") == 4


@pytest.mark.usefixtures("in_pieces")
def test_an_image_is_whole_whatever_is_written_meanwhile(start: Start, copy: Copy) -> None:
    primary = start()
    primary.send(*range(40), bytes(5000))
    copy.follow(primary, sent(primary, {1: 1, 3: 100, 10: 1, 20: 150, 30: 2}))
    assert copy.asked.count("read_image") > 10
    assert "read_records" in copy.asked
    assert not copy.has_image


@pytest.mark.usefixtures("in_pieces")
def test_an_image_that_is_broken_off_anywhere_goes_on(start: Start, copy: Copy) -> None:
    primary = start()
    primary.send(*range(30), bytes(2000))
    copy.follow(primary)
    whole = len(copy.asked)
    for at in range(1, whole, 4):
        shutil.rmtree(copy.path)
        with pytest.raises(NoAnswer):
            copy.catch_up(primary, break_off(at))
        assert not copy.has_store
        primary.send(at)
        copy.follow(primary)
        assert len(copy.asked) < whole + 12, "it goes on"
    assert len(copy.asked) < whole


@pytest.mark.usefixtures("in_pieces")
def test_a_table_that_grows_all_the_time_holds_no_image(start: Start, copy: Copy) -> None:
    primary = start()
    primary.send(*range(30))
    stopping = threading.Event()
    files = CopyFiles(copy.path, copy.settings, URL)
    asked = 0

    def ask(operation: str, arguments: Mapping[str, Any]) -> Any:
        nonlocal asked
        asked += 1
        assert asked < 2000
        if operation == "read_image":
            primary.send(*range(5))
        if files.image is None and files.store is not None:
            stopping.set()
        return primary.broker.request(
            operation, {**arguments, "wait_ms": 0} if "wait_ms" in arguments else arguments, 9
        )

    Following(files, Standing("copy"), ask, None, stopping).run()
    files.close()
    copy.follow(primary)


def test_the_pages_of_an_image_are_as_full_as_those_of_the_server_whatever_is_sent_meanwhile(
    start: Start, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "ANSWER_BYTES", 50_000)
    monkeypatch.setattr(following, "_WRITTEN_BYTES", 100_000)
    primary = start()
    primary.send(*[bytes(10)] * 10_000)
    copy.follow(primary, sent(primary, dict.fromkeys(range(60), 1)))
    store = LmdbStore(copy.path, copy.settings)
    assert store.used_bytes < primary.broker.store.used_bytes * 1.1
    store.close()


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("size", [100, 1200], ids=["many", "large"])
def test_a_copy_gets_to_a_state_though_more_is_written_while_it_reads_much(start: Start, copy: Copy, size: int) -> None:
    primary = start()
    copy.follow(primary)
    primary.send(*[bytes(size)] * 60)
    last = ""
    written = 0

    def write(operation: str, _arguments: Mapping[str, Any]) -> None:
        nonlocal last, written
        if operation != last == "read_commits":
            primary.send(*[bytes(size)] * 60)
            written += 1
        if written > 20:
            raise NoAnswer("that is enough")
        last = operation

    with pytest.raises(NoAnswer):
        copy.catch_up(primary, write)
    assert len(copy.records()["messages"]) > 200


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize(
    ("commits", "sizes", "operation"),
    [(1, [100] * 60, "read_records"), (1, [1200] * 10, "read_piece"), (5, [10], "read_commits")],
    ids=["many", "large", "commits"],
)
def test_a_copy_writes_nothing_but_a_state_that_the_server_had(
    start: Start, copy: Copy, commits: int, sizes: list[int], operation: str
) -> None:
    """What is to be read goes while it is read."""
    primary = start()
    copy.follow(primary)
    for _ in range(commits):
        primary.send(*map(bytes, sizes))
    asked = 0

    def take(asked_for: str, arguments: Mapping[str, Any]) -> None:
        nonlocal asked
        if arguments.get("wait_ms"):
            raise NoAnswer("the first state is written")
        asked += asked_for == operation
        if asked == 2:
            primary.take()

    with pytest.raises(NoAnswer):
        copy.catch_up(primary, take)
    assert copy.differences(primary) == []


@pytest.mark.parametrize("of_primary", [True, False], ids=["primary", "copy"])
def test_a_copy_catches_up_over_a_restart(start: Start, copy: Copy, of_primary: bool) -> None:
    primary = start()
    primary.send("first")
    copy.follow(primary)
    for number in range(3):
        primary.send(number)
        if of_primary:
            primary.restart()
        primary.send(f"after {number}")
        copy.follow(primary)
        assert "read_image" not in copy.asked


def test_a_copy_that_lacks_more_than_the_tail_has_takes_an_image_and_keeps_its_store_until_then(
    start: Start, copy: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    primary = start(tail_bytes=MIB)
    primary.send("old")
    copy.follow(primary)
    long = [f"region {'x' * 200} {number}" for number in range(3)]
    while primary.broker.request("copies", {}, 9)["tail"] < 4:
        primary.send(*range(4000))
        primary.take()
    primary.send(*long)
    with pytest.raises(NoAnswer):
        copy.catch_up(primary, break_off(1, "read_image"))
    assert "the copy takes an image" in caplog.text
    assert copy.has_store
    assert copy.has_image
    (message,) = [value for value in copy.records()["messages"].values() if value.endswith(b"old")]
    assert message
    copy.follow(primary)
    assert not copy.has_image


def test_a_copy_that_can_catch_up_after_all_drops_its_image(start: Start, copy: Copy, tmp_path: Path) -> None:
    primary = start()
    primary.send("old")
    copy.follow(primary)
    files = CopyFiles(copy.path, copy.settings, URL)
    files.begin_image((b"\0" * 8, b""))
    files.close()
    assert copy.has_image
    copy.follow(primary)
    assert not copy.has_image


def test_the_old_primary_follows_the_promoted_copy_and_takes_back_what_only_it_has(
    start: Start, copy: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    primary = start()
    primary.send("both")
    copy.follow(primary)
    primary.send("lost", bytes(5 * MIB), to="only there")
    primary.take()
    primary.close()
    promoted = copy.promote()
    assert promoted.look() == [b"both"]
    promoted.send("new", bytes(6 * MIB))
    old = Copy(primary.path)
    old.follow(promoted)
    assert "read_image" not in old.asked
    assert "commits that the server does not have are taken back" in caplog.text
    promoted.send("newer")
    old.follow(promoted)
    promoted.close()
    # And back again.
    again = old.promote()
    assert [each[:5] for each in again.look()] == [b"both", b"new", bytes(5), b"newer"]
    again.send("newest")
    copy.follow(again)
    assert "read_image" not in copy.asked
    again.close()


@pytest.mark.usefixtures("in_pieces")
def test_a_copy_says_how_far_it_is_only_behind_what_it_takes_back(start: Start, copy: Copy) -> None:
    """A node of a group would be counted else with commits that no other node has still on its disk."""
    primary = start()
    primary.send("both")
    copy.follow(primary)
    primary.send("only here")
    primary.close()
    promoted = copy.promote()
    promoted.send("new")
    old = Copy(primary.path)
    said: list[tuple[bool, list[str]]] = []

    def note(operation: str, arguments: Mapping[str, Any]) -> None:
        if operation == "read_commits":
            said.append(("node" in arguments, list(old.asked)))

    old.catch_up(promoted, note)
    names_itself = [each for each, _ in said]
    assert names_itself[0] is False
    first = said[names_itself.index(True)][1]
    assert first.index("read_records") < len(first) - 1, "the present records came first"
    promoted.close()


def test_what_is_taken_back_may_be_more_than_an_answer_has(start: Start, copy: Copy) -> None:
    primary = start()
    primary.send(*range(10))
    copy.follow(primary)
    primary.send(*[bytes([number] * 200) for number in range(30)], bytes(3000))
    primary.take()
    primary.close()
    promoted = copy.promote()
    promoted.send(*[bytes([number] * 300) for number in range(40)], bytes(2000))
    old = Copy(primary.path)
    with pytest.raises(NoAnswer):
        old.catch_up(promoted, break_off(2, "read_records"))
    old.follow(promoted, sent(promoted, {3: 3, 7: 10, 12: 1}))
    promoted.close()


def test_a_restored_backup_is_followed_without_an_image(start: Start, copy: Copy, tmp_path: Path) -> None:
    primary = start()
    copy.follow(primary)
    primary.send("in the backup")
    primary.close()
    shutil.copytree(primary.path, tmp_path / "backup")
    primary.start()
    primary.send("behind it")
    copy.follow(primary)
    primary.close()
    restored = start("backup")
    restored.send("its own")
    copy.follow(restored)
    assert "read_image" not in copy.asked
    assert restored.look() == [b"in the backup", b"its own"]


@pytest.mark.usefixtures("in_pieces")
def test_an_image_goes_on_with_another_server_and_has_nothing_of_the_first_one(
    start: Start, copy: Copy, tmp_path: Path
) -> None:
    """The first server is lost amid the image, and another copy is promoted that lacks its last commits."""
    primary = start()
    primary.send(*range(30))
    other = Copy(tmp_path / "other")
    other.follow(primary)
    for at in range(3, 99, 3):
        image = Copy(tmp_path / f"copy {at}")
        try:
            image.catch_up(primary, both(sent(primary, {at - 2: 1, at - 1: 1}), break_off(at)))
            break
        except NoAnswer:
            pass
        shutil.copytree(other.path, image.path.with_suffix(".other"))
        promoted = Copy(image.path.with_suffix(".other")).promote()
        promoted.send("its own")
        image.follow(promoted)
        promoted.close()
        other.follow(primary)
    assert at > 20


def both(*them: Before) -> Before:
    def before(operation: str, arguments: Mapping[str, Any]) -> None:
        for each in them:
            each(operation, arguments)

    return before


@pytest.mark.parametrize("killed_at", ["os.replace", "sync_directory"])
def test_a_kill_as_an_image_is_put_into_its_place_leaves_one_that_is_whole(
    start: Start, copy: Copy, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    primary = start()
    primary.send("message")

    def killed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"broker_adapter.engine.store.files.{killed_at}", killed)
        with pytest.raises(KeyboardInterrupt):
            copy.catch_up(primary)
    copy.follow(primary)
    assert "read_image" not in copy.asked


def test_another_store_is_not_replaced(start: Start, copy: Copy) -> None:
    first, second = start("first"), start("second")
    copy.follow(first)
    with pytest.raises(StoreException, match=r"no copy of the one that amqp://primary has, .*: give another directory"):
        copy.catch_up(second)
    copy.follow(first)
    second.close()
    with pytest.raises(StoreException, match="no copy of the one"):
        Copy(second.path).catch_up(first)
    second.start()
    assert second.broker.failed is None


def test_a_server_of_another_version_is_not_followed(start: Start, copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    primary = start()
    monkeypatch.setattr(copies, "STORE_VERSION", STORE_VERSION + 1)
    with pytest.raises(StoreException, match="a copy needs the software of its server"):
        copy.catch_up(primary)
    monkeypatch.undo()
    copy.follow(primary)


@pytest.mark.parametrize("has_store", [True, False], ids=["commits", "image"])
def test_a_copy_with_less_room_than_its_server_goes_on_when_it_has_more(
    start: Start, copy: Copy, has_store: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_adapter.engine.store.lmdb_store._MAP_RESERVE_BYTES", MIB)
    primary = start()
    if has_store:
        primary.send("first")
        copy.follow(primary)
    for _ in range(5):
        primary.send(*[bytes(MIB)] * 10)
    copy.settings = EngineSettings(max_store_bytes=16 * MIB)
    with pytest.raises(ResourceAllocationException, match=r"full: .* \(option max_store_bytes\)"):
        copy.catch_up(primary)
    if has_store:
        assert len(copy.records()["messages"]) == 1, "as it was"
    copy.settings = EngineSettings(max_store_bytes=512 * MIB)
    copy.follow(primary)


def test_a_copy_on_a_disk_without_room_goes_on_when_there_is_some(start: Start, copy: Copy) -> None:
    primary = start()
    primary.send("first")
    copy.follow(primary)
    primary.send(*[bytes(MIB)] * 10)
    with largest_file((copy.path / "data.mdb").stat().st_size + 20_000):
        for _ in range(2):
            with pytest.raises(ResourceAllocationException, match="is full; make room on it"):
                copy.catch_up(primary)
    assert len(copy.records()["messages"]) == 1
    copy.follow(primary)


@pytest.mark.parametrize("size", [0, 8192])
def test_an_image_that_has_no_room_to_begin_with_begins_when_there_is_some(start: Start, copy: Copy, size: int) -> None:
    primary = start()
    primary.send("message")
    Copy(copy.path.with_name("another")).follow(primary)  # so that the primary has nothing to write
    with largest_file(size), pytest.raises(ResourceAllocationException, match="largest size that the system allows"):
        copy.catch_up(primary)
    copy.follow(primary)


def test_a_server_that_was_started_a_thousand_times_is_followed(start: Start, copy: Copy) -> None:
    primary = start()
    copy.follow(primary)
    files = CopyFiles(copy.path, copy.settings, URL)
    assert files.store is not None
    tail = [encode_commit(number, number.to_bytes(8), {}) for number in range(2, MOST_SPANS + 100)]
    files.store.write([({"tail": tail}, {})])
    files.close()
    primary.close()
    promoted = copy.promote()
    other = Copy(primary.path)
    other.follow(promoted)
    assert "read_image" not in other.asked
    promoted.send("message")
    other.follow(promoted)
    assert "read_image" not in other.asked
    promoted.close()


@pytest.mark.damages
def test_a_copy_that_was_repaired_has_what_its_server_has(start: Start, copy: Copy) -> None:
    primary = start()
    primary.send("one", "two")
    copy.follow(primary)
    records = copy.records()
    damage(copy.path, "entries", next(iter(records["entries"])))
    damage(copy.path, "messages", list(records["messages"])[1])
    assert not check_store(copy.path, copy.settings).is_sound
    assert check_store(copy.path, copy.settings, repair=True).repaired
    assert copy.records()["quarantine"]
    copy.follow(primary)
    assert "read_image" not in copy.asked
    assert copy.records() != {}
    assert not copy.records()["quarantine"]


@pytest.mark.damages
def test_a_server_whose_name_was_damaged_and_repaired_is_followed(start: Start, copy: Copy) -> None:
    primary = start()
    primary.send("message")
    copy.follow(primary)
    before = primary.broker.unique
    primary.close()
    damage(primary.path, "meta", UNIQUE)
    assert check_store(primary.path, copy.settings, repair=True).repaired
    primary.start()
    assert primary.broker.unique != before
    for _ in range(2):
        copy.follow(primary)
        assert "read_image" not in copy.asked


def test_it_says_how_far_each_copy_is(start: Start, copy: Copy) -> None:
    primary = start()
    assert primary.copies() == []
    copy.follow(primary)
    (found,) = primary.copies()
    assert (found["node"], found["behind"], found["behind_ms"], found["image"]) == ("copy", 0, 0, None)
    primary.send("behind")
    (found,) = primary.copies()
    assert found["behind"] == 1


def test_it_says_how_far_an_image_is_also_where_that_is_slow(
    start: Start, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "ANSWER_BYTES", 1000)
    monkeypatch.setattr(following, "_WRITTEN_SECONDS", 0.0)
    primary = start()
    primary.send(*[bytes(500)] * 100)
    said: list[int] = []

    def look(operation: str, _arguments: Mapping[str, Any]) -> None:
        if operation == "read_image" and primary.copies():
            said.append(primary.copies()[0]["image"])

    copy.follow(primary, look)
    assert len(said) > 20
    assert said == sorted(said)
    assert said[0] < 200 < 500 < said[-1]
