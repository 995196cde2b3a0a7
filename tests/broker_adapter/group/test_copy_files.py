"""The directory of a copy: its image, its promotion, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.records.layout import COPY_OF, IMAGE, STORE_VERSION
from broker_adapter.engine.records.tail import encode_commit
from broker_adapter.engine.store.deltas import IMAGE_TABLES
from broker_adapter.engine.store.files import own
from broker_adapter.engine.store.maintenance import check_store, compact_store
from broker_adapter.errors import StoreCorruptException, StoreException, StoreLockedException
from broker_adapter.group.copy_files import CopyFiles, ImagePlace, promoted
from broker_adapter.group.following import NoAnswer
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.storing import damage
from tests.broker_adapter.group.copying import URL, Copy, Primary, break_off

SETTINGS = EngineSettings()
COMMIT = encode_commit(7, b"writer w", {})


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Primary]:
    primary = Primary(tmp_path / "primary")
    primary.send("message")
    yield primary
    primary.close()


@pytest.fixture
def copy(tmp_path: Path, primary: Primary) -> Copy:
    """A copy that is whole."""
    copy = Copy(tmp_path / "copy")
    copy.follow(primary)
    return copy


def test_a_new_directory_has_neither_a_store_nor_an_image(tmp_path: Path) -> None:
    files = CopyFiles(tmp_path / "a" / "b", SETTINGS, URL)
    assert files.store is None
    assert files.image is None
    with pytest.raises(StoreLockedException):
        own(tmp_path / "a" / "b")
    files.close()
    own(tmp_path / "a" / "b").close()


def test_an_image_knows_how_far_it_is_when_it_is_opened_again(tmp_path: Path) -> None:
    files = CopyFiles(tmp_path, SETTINGS, URL)
    image = files.begin_image(COMMIT)
    place = image.place()
    assert place is not None
    assert (place.table, place.after, place.until, place.bytes, place.is_whole) == (0, b"", None, 0, False)
    assert (image.lsn, image.writer(7)) == (7, b"writer w")
    image.write([ImagePlace(3, b"a", b"z", 1000).record()])
    files.close()
    files = CopyFiles(tmp_path, SETTINGS, URL)
    assert files.image is not None
    place = files.image.place()
    assert place is not None
    assert (place.table, place.after, place.until, place.bytes) == (3, b"a", b"z", 1000)
    files.image.write([ImagePlace(len(IMAGE_TABLES), b"", None, 2000).record()])
    place = files.image.place()
    assert place is not None
    assert place.is_whole
    files.close()


@pytest.mark.parametrize("content", [b"", bytes(8192), b"no image"])
def test_an_image_that_cannot_be_opened_begins_anew_and_the_store_stays(
    copy: Copy, primary: Primary, content: bytes
) -> None:
    primary.send("kept")
    copy.follow(primary)
    image = copy.path / "image"
    image.mkdir()
    (image / "data.mdb").write_bytes(content)
    files = CopyFiles(copy.path, SETTINGS, URL)
    assert files.image is None
    assert files.store is not None
    files.close()
    assert not image.exists()
    copy.follow(primary)


def test_a_new_image_replaces_the_one_that_was_there_and_a_whole_one_the_store(tmp_path: Path) -> None:
    files = CopyFiles(tmp_path, SETTINGS, URL)
    files.begin_image(COMMIT).write([({"cursors": [(b"k", b"first")]}, {})])
    assert files.begin_image(COMMIT).lsn == 7
    assert files.image is not None
    files.image.write([({"cursors": [(b"k", b"second")]}, {})])
    store = files.complete_image()
    assert (store.lsn, store.copy_of, files.image) == (7, URL, None)
    assert not (tmp_path / "image").exists()
    files.begin_image(encode_commit(9, b"writer w", {}))
    assert files.store is store, "until the new one is whole"
    assert files.complete_image().lsn == 9
    files.drop_image()
    files.close()


def test_a_copy_says_what_it_follows_now(copy: Copy, primary: Primary) -> None:
    copy.follow(primary)
    files = CopyFiles(copy.path, SETTINGS, "amqp://another:1")
    assert files.store is not None
    assert files.store.copy_of == URL
    files.follows(primary.broker.unique, STORE_VERSION, is_known=False)
    assert files.store.copy_of == "amqp://another:1"
    files.close()


def test_files_that_cannot_be_opened_are_left_to_others(copy: Copy) -> None:
    (copy.path / "data.mdb").write_bytes(b"no store" * 1000)
    with pytest.raises(StoreCorruptException):
        CopyFiles(copy.path, SETTINGS, URL)
    own(copy.path).close()


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreException, match="is a file"):
            CopyFiles(path, SETTINGS, URL)


# What a copy is not without a promotion.


def test_a_copy_is_not_served(copy: Copy, primary: Primary) -> None:
    advice = (
        f"is a copy of {URL}: go on following \\(holdfast serve --data {copy.path}, with --follow or --group as"
        f" before\\), or, once that server is stopped, or that group dissolved, make it one:"
        f" holdfast promote {copy.path}"
    )
    with pytest.raises(StoreException, match=advice):
        Broker(SETTINGS, str(copy.path))
    copy.follow(primary)


def test_an_image_is_not_served(tmp_path: Path, primary: Primary) -> None:
    copy = Copy(tmp_path / "copy")
    with pytest.raises(NoAnswer):
        copy.catch_up(primary, break_off(5))
    with pytest.raises(StoreException, match="is a copy of"):
        Broker(SETTINGS, str(copy.path / "image"))


def test_a_copy_is_checked_and_compacted(copy: Copy, primary: Primary) -> None:
    assert check_store(copy.path, SETTINGS).is_sound
    compact_store(copy.path, SETTINGS)
    primary.send("another")
    copy.follow(primary)
    assert "read_image" not in copy.asked


# Promotion.


def test_a_promoted_copy_is_a_server_and_no_copy(copy: Copy, primary: Primary) -> None:
    with primary.broker.store.snapshot() as records:
        lsn = max(int.from_bytes(key) for key, _ in records.items("tail"))
    assert promoted(copy.path, SETTINGS) == (URL, lsn)
    server = Primary(copy.path)
    assert server.take() == [b"message"]
    with server.broker.store.snapshot() as records:
        assert records.get("meta", COPY_OF) is None
    assert server.broker.unique == primary.broker.unique
    assert server.broker.run != primary.broker.run
    server.close()


def test_what_there_is_of_a_new_image_is_removed_by_a_promotion(copy: Copy) -> None:
    files = CopyFiles(copy.path, SETTINGS, URL)
    files.begin_image(COMMIT)
    files.close()
    server = copy.promote()
    assert server.look() == [b"message"]
    assert not copy.has_image
    server.close()


def test_what_is_no_copy_is_not_promoted(tmp_path: Path, primary: Primary) -> None:
    with pytest.raises(StoreException, match="there is no store"):
        promoted(tmp_path / "nothing", SETTINGS)
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(StoreLockedException):
        promoted(primary.path, SETTINGS)
    primary.close()
    with pytest.raises(StoreException, match="is no copy: it can be served as it is"):
        promoted(primary.path, SETTINGS)
    primary.start()
    assert primary.look() == [b"message"]


def test_a_copy_is_promoted_once(copy: Copy) -> None:
    promoted(copy.path, SETTINGS)
    with pytest.raises(StoreException, match="is no copy: it can be served as it is"):
        promoted(copy.path, SETTINGS)


def test_an_image_that_is_not_whole_is_not_promoted(tmp_path: Path, primary: Primary) -> None:
    copy = Copy(tmp_path / "copy")
    with pytest.raises(NoAnswer):
        copy.catch_up(primary, break_off(5))
    with pytest.raises(StoreException, match="is not whole yet: its image is not complete"):
        promoted(copy.path, SETTINGS)
    copy.follow(primary)
    promoted(copy.path, SETTINGS)


def test_a_copy_that_a_process_has_open_is_not_promoted(copy: Copy) -> None:
    files = CopyFiles(copy.path, SETTINGS, URL)
    with pytest.raises(StoreLockedException):
        promoted(copy.path, SETTINGS)
    files.close()
    promoted(copy.path, SETTINGS)


@pytest.mark.damages
def test_where_it_is_damaged_what_it_is_a_copy_of_it_is_neither_served_nor_promoted(
    copy: Copy, primary: Primary
) -> None:
    damage(copy.path, "meta", COPY_OF)
    for refused in (lambda: Broker(SETTINGS, str(copy.path)), lambda: promoted(copy.path, SETTINGS)):
        with pytest.raises(StoreCorruptException, match=r"'copy_of' of the store .* is damaged"):
            refused()
    assert check_store(copy.path, SETTINGS, repair=True).repaired
    copy.follow(primary)
    assert "read_image" not in copy.asked


@pytest.mark.damages
def test_an_image_that_has_lost_how_far_it_is_begins_anew(tmp_path: Path, primary: Primary) -> None:
    copy = Copy(tmp_path / "copy")
    for repair in (False, True):
        with pytest.raises(NoAnswer):
            copy.catch_up(primary, break_off(9))
        damage(copy.path / "image", "meta", IMAGE)
        if repair:
            check_store(copy.path / "image", SETTINGS, repair=True)
    copy.follow(primary)
    assert copy.asked.count("read_image") == len(IMAGE_TABLES)


@pytest.mark.parametrize(
    ("after", "until", "due"),
    [(b"", None, b""), (b"b", None, b"ab"), (b"b", b"c", b"abd")],
    ids=["a table that begins", "up to a key", "up to a key, and behind the last one that is to come"],
)
def test_an_image_needs_what_has_changed_up_to_where_it_is(after: bytes, until: bytes | None, due: bytes) -> None:
    earlier, table, later = IMAGE_TABLES[:3]
    keys = [b"a", b"b", b"c", b"d"]
    wanted = [key for key in keys if key in due]
    of_all = dict.fromkeys((earlier, table, later, "tail"), keys)
    puts, deletes = ImagePlace(1, after, until, 0).due(
        ({each: [(key, b"") for key in keys] for each, keys in of_all.items()}, of_all)
    )
    assert deletes == {earlier: keys, table: wanted, later: [], "tail": keys}
    assert puts == {each: [(key, b"") for key in keys] for each, keys in deletes.items()}
