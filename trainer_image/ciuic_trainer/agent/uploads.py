"""Brings checkpoints from the memory tier to S3, commits them (slot 0) and deletes old ones. One thread; used by `runtime`.

It needs no operator: an agent that is cut off goes on uploading and committing. Deleting needs one: a cut-off attempt
must not delete what its successor needs.
"""

import io
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ciuic_api.lineage import Attempt, CheckpointId, counts
from ciuic_api.protocol import UploadState
from ciuic_trainer.shared.memory_tier import Held, MemoryTier, NotHeld, ShardCorrupt

from .run_store import Damaged, RunStore, ShardRecord
from .store import Exists, StoreError

BACKOFF_SECONDS = (0.5, 15.0)
WAIT_FOR_SHARDS_SECONDS = 0.3


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What the newest directive means for uploads."""

    attempt: int = 0
    slot: int = 0
    lineage: tuple[Attempt, ...] = ()
    """Of this attempt: each link is written before the first manifest of its attempt."""
    keep_last: int = 3
    confirmed_at: float = -1e9
    """When a directive last confirmed the attempt, of the monotonic clock."""


@dataclass
class Uploads:
    tiers: dict[int, MemoryTier]
    """By rank, of this pod."""
    world_size: int
    run: RunStore
    say: Callable[[str], None]
    deletion_seconds: float
    claim: Callable[[], bool]
    """Makes sure that OWNER.json names this attempt, before slot 0 commits."""
    orders: Orders = Orders()
    _uncommitted: list[CheckpointId] = field(default_factory=list)
    _committed: CheckpointId | None = None
    _failing_since: float | None = None
    _message: str = ""
    _wake: threading.Event = field(default_factory=threading.Event)
    _ended: bool = False

    def start(self) -> None:
        threading.Thread(target=self._work, name="uploads", daemon=True).start()

    def wake(self) -> None:
        self._wake.set()

    def state(self) -> UploadState:
        failing = time.monotonic() - self._failing_since if self._failing_since is not None else 0.0
        pending = len(self._pending()) + len(self._uncommitted)
        return UploadState(committed=self._committed, pending=pending, failing_seconds=failing, message=self._message)

    def done(self) -> bool:
        """Nothing is waiting for its upload or its manifest."""
        return not self._pending() and not self._uncommitted

    def abandon_dead_branches(self) -> None:
        """A new attempt was released: what is not on its lineage will not be uploaded or committed any more."""
        self._uncommitted = [checkpoint for checkpoint in self._uncommitted if self._counts(checkpoint)]
        for rank, held in self._pending():
            if not self._counts(held.checkpoint):
                self._settle(rank, held.checkpoint)

    def _counts(self, checkpoint: CheckpointId) -> bool:
        return counts(checkpoint, self.orders.attempt, self.orders.lineage)

    # --- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        failures = 0
        while not self._ended:
            try:
                moved = self._upload_next() or self._commit_next()
            except (StoreError, Damaged) as error:
                failures += 1
                self._failed(error)
                low, high = BACKOFF_SECONDS
                self._wait(random.uniform(0.5, 1.0) * min(high, low * 2**failures))
                continue
            if moved:
                failures = 0
                self._recovered()
            else:
                self._wait(WAIT_FOR_SHARDS_SECONDS if self._uncommitted else 1.0)

    def _wait(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _failed(self, error: Exception) -> None:
        if self._failing_since is None:
            self._failing_since = time.monotonic()
            self.say(f"uploads fail and are tried again: {error}")
        self._message = str(error)

    def _recovered(self) -> None:
        if self._failing_since is not None:
            self.say(f"uploads work again after {time.monotonic() - self._failing_since:.0f} s")
        self._failing_since, self._message = None, ""

    def _pending(self) -> list[tuple[int, Held]]:
        return [(rank, held) for rank, tier in self.tiers.items() for held in tier.held() if held.pending]

    def _upload_next(self) -> bool:
        """The newest first: when uploads fall behind, the older ones are of less use."""
        waiting = [(rank, held) for rank, held in self._pending() if self._counts(held.checkpoint)]
        waiting.sort(key=lambda item: (-item[1].checkpoint.step, item[0]))
        if not waiting:
            return False
        rank, held = waiting[0]
        try:
            pinned, payload = self.tiers[rank].open_verified(held.checkpoint)
        except NotHeld:
            return True  # written over in between
        except ShardCorrupt as error:
            self.say(str(error))
            self._settle(rank, held.checkpoint)
            return True
        with pinned:
            record = ShardRecord(
                rank=rank,
                world_size=self.world_size,
                checkpoint=held.checkpoint,
                size_bytes=held.size_bytes,
                crc32=held.crc32,
            )
            self.run.put_shard(record, io.BytesIO(payload) if len(payload) < 2**20 else Window(payload))
            # Before it counts as done: a commit that is due must not be forgotten between the two.
            if self.orders.slot == 0 and held.checkpoint not in self._uncommitted:
                self._uncommitted.append(held.checkpoint)
            pinned.settle()
        return True

    def _settle(self, rank: int, checkpoint: CheckpointId) -> None:
        try:
            pinned, _ = self.tiers[rank].pin(checkpoint)
        except NotHeld:
            return
        with pinned:
            pinned.settle()

    def _commit_next(self) -> bool:
        orders = self.orders
        for checkpoint in sorted(self._uncommitted, reverse=True):
            link = next((link for link in orders.lineage if link.attempt == checkpoint.attempt), None)
            if link is None or not self.claim():
                continue
            try:
                whole = self.run.commit(checkpoint, link)
            except Exists as error:
                self.say(f"checkpoint {checkpoint} is not committed: {error}")
                self._uncommitted.remove(checkpoint)
                continue
            if whole:
                self._committed = max(checkpoint, self._committed or checkpoint)
                # Older ones that still wait for a shard are superseded.
                self._uncommitted = [other for other in self._uncommitted if other.step > checkpoint.step]
                self.say(f"checkpoint {checkpoint} is in S3")
                self._delete_old(orders)
                return True
        return False

    def _delete_old(self, orders: Orders) -> None:
        def may_delete() -> bool:
            age = time.monotonic() - self.orders.confirmed_at
            return self.orders.attempt == orders.attempt and age < self.deletion_seconds

        if orders.attempt and may_delete():
            self.run.retain(orders.attempt, orders.keep_last, may_delete)

    def stop(self) -> None:
        self._ended = True
        self.wake()


class Window(io.RawIOBase):
    """A readable, seekable file over memory, without a copy: the upload reads parts of it as it sends them."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else self._at + size
        piece = bytes(self._data[self._at : end])
        self._at += len(piece)
        return piece
