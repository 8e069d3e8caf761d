"""Copies of the cluster's pods and nodes, kept current by list and watch. Built by `__main__`, read by `observe`.

A Store holds the newest known version of each object, whether it came by watch or as the answer to our own write: what
this process has created, its next decision sees. A Watch feeds one store.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Hashable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from .errors import Gone, KubeError, Silent, Unavailable
from .kube import Page

log = logging.getLogger(__name__)

SILENCE_SECONDS = 70.0
"""The server sends bookmarks each minute, but only when something has changed: a stream that is silent for longer is dead,
or the cluster is quiet. A list tells which."""
BACKOFF_SECONDS = (1.0, 30.0)


class Record(Protocol):
    @property
    def uid(self) -> str: ...
    @property
    def version(self) -> int: ...


R = TypeVar("R", bound=Record)
Changed = Callable[[R | None, R | None], None]


class Store(Generic[R]):
    """Objects of one kind by UID, with secondary keys. `changed(before, after)` is called for every difference."""

    def __init__(self, keys: Mapping[str, Callable[[R], Hashable]], changed: Changed[R]) -> None:
        self._keys = keys
        self._changed = changed
        self._by_uid: dict[str, R] = {}
        self._by_key: dict[str, dict[Hashable, dict[str, R]]] = {name: defaultdict(dict) for name in keys}
        self.version = 0
        """How far the watch has come."""

    def get(self, uid: str) -> R | None:
        return self._by_uid.get(uid)

    def by(self, key: str, value: Hashable) -> Collection[R]:
        return tuple(self._by_key[key].get(value, {}).values())

    def __len__(self) -> int:
        return len(self._by_uid)

    def seen(self, record: R) -> None:
        """From the watch."""
        self.version = max(self.version, record.version)
        self._put(record)

    def learn(self, record: R) -> None:
        """From the answer to a call of our own. What the watch has already seen come and go stays gone."""
        if record.uid in self._by_uid or record.version > self.version:
            self._put(record)

    def gone(self, uid: str, version: int = 0) -> None:
        """Deleted: by the watch, or because a call of our own found nothing."""
        self.version = max(self.version, version)
        before = self._by_uid.pop(uid, None)
        if before is not None:
            self._unlink(before)
            self._changed(before, None)

    def replace(self, records: Collection[R], version: int) -> int:
        """A fresh list. Objects that it lacks are gone, but not those that were created after it was made.

        Returns how many objects were not known as they are.
        """
        listed = {record.uid for record in records}
        news = sum([self._put(record) for record in records])
        vanished = [r for r in self._by_uid.values() if r.uid not in listed and r.version <= version]
        for old in vanished:
            self.gone(old.uid)
        self.version = max(self.version, version)
        return news + len(vanished)

    def advance(self, version: int) -> None:
        self.version = max(self.version, version)

    def _put(self, record: R) -> bool:
        """Whether it was news."""
        before = self._by_uid.get(record.uid)
        if before is not None and before.version >= record.version:
            return False
        if before is not None:
            self._unlink(before)
        self._by_uid[record.uid] = record
        for name, key in self._keys.items():
            self._by_key[name][key(record)][record.uid] = record
        self._changed(before, record)
        return True

    def _unlink(self, record: R) -> None:
        for name, key in self._keys.items():
            bucket = self._by_key[name][key(record)]
            bucket.pop(record.uid, None)
            if not bucket:
                del self._by_key[name][key(record)]


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _BookmarkMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str
    uid: str = ""


class _Bookmark(msgspec.Struct, frozen=True):
    metadata: _BookmarkMeta


class _Error(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_bookmark = msgspec.json.Decoder(_Bookmark).decode
_decode_error = msgspec.json.Decoder(_Error).decode


class Watch(Generic[R]):
    def __init__(
        self,
        name: str,
        store: Store[R],
        parse: Callable[[bytes | msgspec.Raw], R],
        pages: Callable[[], AsyncIterator[Page]],
        stream: Callable[[str, float], AsyncGenerator[bytes]],
        *,
        silence_seconds: float = SILENCE_SECONDS,
        backoff_seconds: tuple[float, float] = BACKOFF_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.synced = asyncio.Event()
        """Set after the first list: only then an absent object is absent."""
        self._store = store
        self._parse = parse
        self._pages = pages
        self._stream = stream
        self._silence_seconds = silence_seconds
        self._backoff_seconds = backoff_seconds
        self._clock = clock
        self._progress_at = clock()
        self._interrupted = False
        self._unreadable = ""

    def age(self) -> float:
        """Seconds since the stream was last known to be complete: by an event, a bookmark, or a list without news.

        An open but silent stream is no progress, and neither is a list that shows what the stream should have told.
        """
        return self._clock() - self._progress_at

    async def run(self) -> None:
        """Lists and watches until it is cancelled."""
        version: str | None = None
        silent = False
        failures = 0
        while True:
            try:
                if version is None:
                    version = await self._list(silent)
                    silent = False
                version = await self._follow(version)
                failures = 0
            except Silent:
                version, silent = None, True
            except Gone as error:
                version = None
                failures += 1
                if failures > 1:
                    await asyncio.sleep(self._pause(failures, error))
            except (KubeError, msgspec.DecodeError) as error:
                # What was seen before the stream broke is in the store: go on from there.
                version = None if version is None else str(max(int(version), self._store.version))
                failures += 1
                if not self._interrupted:
                    self._interrupted = True
                    log.warning(f"watch of {self.name} is interrupted: {error}")
                await asyncio.sleep(self._pause(failures, error))

    def _pause(self, failures: int, error: Exception) -> float:
        low, high = self._backoff_seconds
        after = error.retry_after if isinstance(error, Unavailable) else 0.0
        return max(after, random.uniform(low / 2, 1.0) * min(high, low * 2.0 ** min(failures - 1, 10)))

    async def _list(self, after_silence: bool) -> str:
        records: list[R] = []
        version = ""
        async for page in self._pages():
            records += [record for raw in page.items or () if (record := self._parsed(raw)) is not None]
            version = page.metadata.resource_version
        news = self._store.replace(records, int(version))
        if after_silence and news:
            log.warning(f"watch of {self.name} was silent about {news} changes, a list has shown them")
        else:
            self._progressed()
        self.synced.set()
        return version

    async def _follow(self, version: str) -> str:
        """One watch request; returns the version to go on from after the server has ended it."""
        async with contextlib.aclosing(self._stream(version, self._silence_seconds)) as lines:
            async for line in lines:
                event = _decode_event(line)
                if event.type == "ERROR":
                    error = _decode_error(event.object)
                    if error.code == 410:
                        raise Gone(error.message)
                    raise Unavailable(f"error {error.code} in the stream: {error.message}")
                meta = _decode_bookmark(event.object).metadata
                if event.type == "BOOKMARK":
                    self._store.advance(int(meta.resource_version))
                elif event.type == "DELETED":
                    self._store.gone(meta.uid, int(meta.resource_version))
                elif (record := self._parsed(event.object)) is not None:
                    self._store.seen(record)
                version = meta.resource_version
                self._progressed()
        return version

    def _parsed(self, raw: msgspec.Raw) -> R | None:
        try:
            return self._parse(raw)
        except (msgspec.DecodeError, ValueError) as error:
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                log.warning(f"watch of {self.name}: an object can not be read and is left out: {error}")
            return None

    def _progressed(self) -> None:
        self._progress_at = self._clock()
        if self._interrupted:
            self._interrupted = False
            log.info(f"watch of {self.name} goes on")
