"""The directory of a copy: its store, and beside it the image that will replace it.

``DATA/data.mdb`` is a state that the server's store had, at any time.  What comes of an image goes to ``DATA/image``,
and into the place of ``data.mdb`` once it is complete.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker_adapter.engine.records.layout import COPY_OF, IMAGE, STORE_VERSION, decode_meta, encode_meta
from broker_adapter.engine.records.tail import Keys, Span, lsn_key, writer_of
from broker_adapter.engine.store.changes import Changes
from broker_adapter.engine.store.deltas import IMAGE_TABLES, lsn_of, spans_of, tail_keys
from broker_adapter.engine.store.files import DATA, LOCK, PUT_ASIDE, existing_store, own, put_in_place, sync_directory
from broker_adapter.engine.store.lmdb_errors import without_room
from broker_adapter.engine.store.lmdb_store import LmdbStore, make_directory
from broker_adapter.errors import ResourceAllocationException, StoreCorruptException, StoreException
from broker_adapter.settings import EngineSettings

_log = logging.getLogger(f"holdfast.{__name__}")

#: Where an image is put.
IMAGE_DIRECTORY: Final = "image"
_NUMBERS: Final = {table: number for number, table in enumerate(IMAGE_TABLES)}
#: Is there where the store was found to be damaged.
DISTRUSTED: Final = "distrusted"


class ImagePlace:
    """How far an image is; the fields are those of its record.

    Attributes:
        table: the number of the table in :data:`IMAGE_TABLES` that is under way; their count: there is none left.
        after: the last key of it that has come; empty: none has.
        until: the last key that is to come, of a table that grows as fast; None: all keys are.
        bytes: that have come.
    """

    __slots__ = ("after", "bytes", "table", "until")

    def __init__(self, table: int, after: bytes, until: bytes | None, size: int) -> None:
        self.table, self.after, self.until, self.bytes = table, after, until, size

    @property
    def is_whole(self) -> bool:
        """Whether all tables have come."""
        return self.table == len(IMAGE_TABLES)

    def due(self, changes: Changes) -> Changes:
        """What of the changes in a commit the image needs by now.

        The other records come later, as they are then.  So all of a table comes in the order of its keys, and fills its
        pages: else the file would be half as large again.
        """
        puts, deletes = changes
        return (
            {table: [each for each in records if self._has_passed(table, each[0])] for table, records in puts.items()},
            {table: [key for key in keys if self._has_passed(table, key)] for table, keys in deletes.items()},
        )

    def _has_passed(self, table: str, key: bytes) -> bool:
        number = _NUMBERS.get(table, -1)
        if number != self.table:
            return number < self.table
        return key <= self.after or (self.until is not None and key > self.until)

    def record(self) -> Changes:
        """What notes it in the image."""
        fields = {each: getattr(self, each) for each in self.__slots__}
        return {"meta": [(IMAGE, encode_meta(IMAGE, fields))]}, {}


class CopyStore:
    """A store that follows another one.

    Args:
        path: the directory.
        settings: ``max_store_bytes`` and ``tail_bytes``.
    """

    def __init__(self, path: Path, settings: EngineSettings) -> None:
        self._store = LmdbStore(path, settings, is_owned=True)
        self.unique = self._store.unique

    @property
    def copy_of(self) -> str | None:
        """The URL of the server that it follows."""
        return self._store.copy_of

    @property
    def lsn(self) -> int:
        """The last commit that it has."""
        with self._store.snapshot() as records:
            return lsn_of(records)

    def spans(self) -> list[Span]:
        """Who wrote the commits that it remembers."""
        with self._store.snapshot() as records:
            return spans_of(records)

    def writer(self, lsn: int) -> bytes:
        """Who wrote a commit that it remembers."""
        with self._store.snapshot() as records:
            value = records.get("tail", lsn_key(lsn))
        assert value is not None
        return writer_of(value)

    def behind(self, lsn: int) -> tuple[bytes, list[bytes], Keys]:
        """Who wrote a commit, and what ``tail_keys`` finds behind it, without what a copy alone has."""
        with self._store.snapshot() as records:
            value = records.get("tail", lsn_key(lsn))
            own, keys = tail_keys(records, lsn)
        assert value is not None
        return writer_of(value), own, {table: [key for key in some if key != COPY_OF] for table, some in keys.items()}

    def place(self) -> ImagePlace | None:
        """How far it is, of an image; None: that is not known."""
        with self._store.snapshot() as records:
            value = records.get("meta", IMAGE)
        try:
            found: dict[str, Any] | None = None if value is None else decode_meta(IMAGE, value)
        except StoreCorruptException:
            found = None
        return None if found is None else ImagePlace(found["table"], found["after"], found["until"], found["bytes"])

    def write(self, parts: Iterable[Changes]) -> None:
        """Write all parts in one transaction; see :meth:`LmdbStore.write_copied`."""
        self._store.write_copied(parts)

    def close(self) -> None:
        """Close the files."""
        self._store.close()


class Promoted(NamedTuple):
    """A store that was that of a copy."""

    copy_of: str  #: the server that it followed
    lsn: int  #: the last commit that it has


def promoted(path: str | os.PathLike[str], settings: EngineSettings) -> Promoted:
    """Make the store of a copy that of a server; what there is of a new image is removed.

    Raises:
        StoreException: there is no whole copy, or the store is none of a copy.
        StoreLockedException: a process has it open.
    """
    directory = Path(path)
    image = directory / IMAGE_DIRECTORY
    if not (directory / DATA).exists() and image.exists():
        raise StoreException(f"the copy in {str(directory)!r} is not whole yet: its image is not complete")
    existing_store(directory)
    with own(directory):
        store = CopyStore(directory, settings)
        try:
            copy_of, lsn = store.copy_of, store.lsn
            if copy_of is None:
                raise StoreException(f"the store in {str(directory)!r} is no copy: it can be served as it is")
            store.write([({}, {"meta": [COPY_OF, IMAGE]})])
        finally:
            store.close()
        shutil.rmtree(image, ignore_errors=True)
    return Promoted(copy_of, lsn)


class CopyFiles:
    """The directory of a copy.

    Args:
        path: the directory; made where it does not exist.
        settings: ``max_store_bytes`` and ``tail_bytes``.
        url: of the server that it follows, without a password.
        may_be_damaged: whether a store that cannot be opened may be put aside.

    Attributes:
        store: the last whole state; None: there is none yet.
        damage: why the store cannot be opened, which has to be put aside.
        image: what replaces it once it is complete; None: there is none.

    Raises:
        StoreException, StoreLockedException, StoreVersionException, StoreCorruptException: see ``LmdbStore``.
    """

    def __init__(
        self, path: str | os.PathLike[str], settings: EngineSettings, url: str, *, may_be_damaged: bool = False
    ) -> None:
        self._path = Path(path)
        self._settings = settings
        self._url = url
        self.store: CopyStore | None = None
        self.damage: StoreCorruptException | None = None
        self.image: CopyStore | None = None
        make_directory(self._path)
        self._owner = own(self._path)
        try:
            if (self._path / DATA).exists():
                try:
                    self.store = CopyStore(self._path, settings)
                except StoreCorruptException as error:
                    if not may_be_damaged:
                        raise
                    self.damage = error
            if (self._image_path / DATA).exists():
                try:
                    self.image = CopyStore(self._image_path, settings)
                except StoreException as error:
                    _log.warning("! what there was of an image is of no use, and begins anew: %s", error)
                    self.drop_image()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<CopyFiles {self._path}>"

    @property
    def _noted(self) -> dict[str, list[tuple[bytes, bytes]]]:
        """What says that a store is a copy."""
        return {"meta": [(COPY_OF, encode_meta(COPY_OF, self._url))]}

    @property
    def _image_path(self) -> Path:
        return self._path / IMAGE_DIRECTORY

    @property
    def is_followed(self) -> bool:
        """Whether the store follows what the URL names; one that was promoted does not any more."""
        return self.store is not None and self.store.copy_of == self._url

    def follows(self, unique: str, version: int, *, is_known: bool) -> None:
        """Note in the store which server it follows.

        Args:
            unique: what the store of the server is known by: a repair may have changed it.
            version: of the layout of that store.
            is_known: whether the store has a commit in common with that of the server.

        Raises:
            StoreException: the store was not made from that of the server, or has another layout.
        """
        if version != STORE_VERSION:
            raise StoreException(
                f"the store that {self._url} has is of version {version}, and this software writes version"
                f" {STORE_VERSION}: a copy needs the software of its server"
            )
        if self.store is None:
            return
        if self.store.unique != unique and not is_known:
            raise StoreException(
                f"the store in {str(self._path)!r} is no copy of the one that {self._url} has, which it would replace:"
                " give another directory, which is made where there is none"
            )
        if self.store.copy_of != self._url or self.store.place() is not None:
            self.store.write([(self._noted, {"meta": [IMAGE]})])

    def begin_image(self, commit: tuple[bytes, bytes]) -> CopyStore:
        """Begin an image.

        Args:
            commit: the record of a commit of the server; those behind it come beside the image.

        Raises:
            ResourceAllocationException: there is no room for it.
        """
        self.drop_image()
        try:
            self._image_path.mkdir(mode=0o700)
            self.image = CopyStore(self._image_path, self._settings)
        except (OSError, StoreException) as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            full = without_room(self._path, cause)
            if full is not None:
                raise ResourceAllocationException(full) from error
            raise
        self.image.write([({"tail": [commit], **self._noted}, {}), ImagePlace(0, b"", None, 0).record()])
        return self.image

    def drop_image(self) -> None:
        """Remove an image that is of no use."""
        if self.image is not None:
            self.image.close()
            self.image = None
        shutil.rmtree(self._image_path, ignore_errors=True)

    def complete_image(self) -> CopyStore:
        """Put a complete image into the place of the store."""
        assert self.image is not None
        self.image.write([(self._noted, {})])
        self.image.close()
        self.image = None
        if self.store is not None:
            self.store.close()
            self.store = None
        put_in_place(self._image_path / DATA, self._path)
        shutil.rmtree(self._image_path, ignore_errors=True)
        self.store = CopyStore(self._path, self._settings)
        self.store.write([({}, {"meta": [IMAGE]})])
        return self.store

    @property
    def is_distrusted(self) -> bool:
        """Whether the store was found to be damaged."""
        return (self._path / DISTRUSTED).exists()

    @property
    def has_put_aside(self) -> bool:
        """Whether there is a store that was put aside."""
        return any(self._path.glob(f"{DATA}{PUT_ASIDE}*"))

    def distrust(self) -> None:
        """Note that the store is damaged, whoever has it open."""
        with contextlib.suppress(OSError):  # of a disk that has failed
            (self._path / DISTRUSTED).touch()
            sync_directory(self._path)

    def put_aside(self) -> None:
        """Give the store, which is damaged, another name: there is none any more, and an image is needed."""
        if self.store is not None:
            self.store.close()
            self.store = None
        aside = f"{DATA}{PUT_ASIDE}{time.strftime('%Y%m%d-%H%M%S')}"
        with contextlib.suppress(FileNotFoundError):  # it was renamed, and the process killed ahead of the end
            os.replace(self._path / DATA, self._path / aside)
        (self._path / LOCK).unlink(missing_ok=True)
        (self._path / DISTRUSTED).unlink(missing_ok=True)
        sync_directory(self._path)
        _log.error("! the damaged store is %s now, and this node takes an image", aside)

    def make_store(self) -> CopyStore:
        """Have the store that begins a group, which is made where there is none."""
        self.as_primary().close()
        self.store = CopyStore(self._path, self._settings)
        self.store.write([(self._noted, {})])
        return self.store

    def as_primary(self) -> LmdbStore:
        """Return the store for the engine of a primary, which closes it; this object keeps the ownership only."""
        if self.store is not None:
            self.store.close()
            self.store = None
        self.drop_image()
        store = LmdbStore(self._path, self._settings, is_owned=True)
        store.begin_tail()
        return store

    def close(self) -> None:
        """Close the files, and give up the ownership."""
        for each in (self.store, self.image):
            if each is not None:
                each.close()
        self._owner.close()
