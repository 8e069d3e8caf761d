"""Brings checkpoints from the memory tier to S3, commits them (slot 0) and deletes old ones. One thread; used by `runtime`.

It needs no operator: an agent that is cut off goes on uploading and committing. Deleting needs one, and a run that is
still this attempt's: a cut-off attempt must not delete what its successor needs.
"""

import random
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ciuic_api.lineage import Attempt, CheckpointId, counts
from ciuic_api.protocol import UploadState
from ciuic_trainer.shared.memory_tier import Held, MemoryTier, NotHeld, ShardCorrupt

from .records import Damaged, ShardRecord
from .run_store import RunStore
from .run_watch import NotOurs
from .store import Exists, StoreError
from .window import Abandoned, Window

BACKOFF_SECONDS = (0.5, 15.0)
IDLE_SECONDS = 1.0
WAIT_FOR_SHARDS_SECONDS = (0.3, 2.0)
GIVE_UP_SECONDS = 600.0
"""A checkpoint whose other shards do not come for so long, while the store answers, will not be whole any more."""
MESSAGE_CHARACTERS = 500


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What the newest directive means for uploads."""

    attempt: int = 0
    """Its lineage counts."""
    slot: int = 0
    lineage: tuple[Attempt, ...] = ()
    tiers: Mapping[int, MemoryTier] = field(default_factory=dict)
    """By rank, of this pod."""
    keep_last: int = 3
    confirmed_at: float = -1e9
    """When a directive last confirmed the attempt, of the monotonic clock."""

    def count(self, checkpoint: CheckpointId) -> bool:
        return counts(checkpoint, self.attempt, self.lineage)


class Uploads:
    def __init__(
        self,
        *,
        run: RunStore,
        world_size: int,
        claim: Callable[[], bool],
        owns: Callable[[int], bool],
        committing: Callable[[], None],
        say: Callable[[str], None],
        deletion_seconds: float,
    ) -> None:
        """`claim` makes sure that OWNER.json names this attempt, before slot 0 commits; `owns` tells whether it still does.

        `committing` is called when a manifest was written, before the state tells it.
        """
        self._run = run
        self._world_size = world_size
        self._claim = claim
        self._owns = owns
        self._committing = committing
        self._say = say
        self._deletion_seconds = deletion_seconds
        self._lock = threading.Lock()
        """Guards what follows; never held during a call to the store."""
        self._orders = Orders()
        self._uncommitted: dict[CheckpointId, float] = {}
        """What slot 0 uploaded its part of, and since when it has waited for the others' parts."""
        self._given_up: set[CheckpointId] = set()
        self._committed: CheckpointId | None = None
        self._failing_since: float | None = None
        self._message = ""
        self._woken = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._work, name="uploads", daemon=True).start()

    # --- called by the loop ---------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        return self._orders.attempt

    def wake(self) -> None:
        self._woken.set()

    def order(self, orders: Orders) -> None:
        """An attempt was released: what is not on its lineage will not be uploaded or committed any more."""
        with self._lock:
            if orders.attempt != self._orders.attempt:
                self._committed, self._given_up = None, set()
            self._orders = orders
            self._uncommitted = {c: since for c, since in self._uncommitted.items() if orders.count(c)}
        for rank, held in _pending(orders):
            if not orders.count(held.checkpoint):
                _settle(orders.tiers[rank], held.checkpoint)
        self.wake()

    def confirm(self, attempt: int, keep_last: int, at: float) -> None:
        """A directive for this attempt was heard."""
        with self._lock:
            if attempt == self._orders.attempt:
                self._orders = replace(self._orders, keep_last=keep_last, confirmed_at=at)

    def state(self) -> UploadState:
        with self._lock:
            waiting = set(self._uncommitted) | {held.checkpoint for _, held in _pending(self._orders)}
            since = self._failing_since
            return UploadState(
                committed=self._committed,
                pending=len(waiting),
                failing_seconds=time.monotonic() - since if since is not None else 0.0,
                message=self._message[:MESSAGE_CHARACTERS],
            )

    def done(self) -> bool:
        """Nothing waits for its upload or, in slot 0, for its manifest."""
        with self._lock:
            return not self._uncommitted and not _pending(self._orders)

    # --- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        failures = idle = 0
        while True:
            try:
                moved = self._upload_next() or self._commit_next()
            except (StoreError, Damaged) as error:
                failures += 1
                self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - a thread that ends in silence would end all uploads
                self._say("".join(traceback.format_exception(error)))
                failures += 1
                self._failed(f"internal error: {error!r}")
            else:
                failures = 0
                self._recovered()
                idle = 0 if moved else idle + 1
                if not moved:
                    self._wait(self._idle_seconds(idle))
                continue
            low, high = BACKOFF_SECONDS
            self._wait(random.uniform(0.5, 1.0) * min(high, low * 2 ** min(failures, 10)))

    def _idle_seconds(self, idle: int) -> float:
        low, high = WAIT_FOR_SHARDS_SECONDS
        with self._lock:
            return min(high, low * 1.5 ** min(idle, 10)) if self._uncommitted else IDLE_SECONDS

    def _wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()

    def _failed(self, message: str) -> None:
        with self._lock:
            first = self._failing_since is None
            if first:
                self._failing_since = time.monotonic()
            self._message = message
        if first:
            self._say(f"uploads fail and are tried again: {message}")

    def _recovered(self) -> None:
        with self._lock:
            since, self._failing_since, self._message = self._failing_since, None, ""
        if since is not None:
            self._say(f"uploads work again after {time.monotonic() - since:.0f} s")

    def _upload_next(self) -> bool:
        """The newest first: when uploads fall behind, the older ones are of less use."""
        orders = self._orders
        waiting = [(rank, held) for rank, held in _pending(orders) if orders.count(held.checkpoint)]
        if not waiting:
            return False
        rank, held = min(waiting, key=lambda item: (-item[1].checkpoint.step, item[0]))
        tier = orders.tiers[rank]
        try:
            pinned, payload = tier.open_verified(held.checkpoint)
        except NotHeld:
            return True  # written over in between
        except ShardCorrupt as error:
            self._say(f"not uploaded: {error}")
            _settle(tier, held.checkpoint)
            self._give_up(held.checkpoint)
            return True
        with pinned:
            record = ShardRecord(
                rank=rank,
                world_size=self._world_size,
                checkpoint=held.checkpoint,
                size_bytes=held.size_bytes,
                crc32=held.crc32,
            )
            try:
                self._run.put_shard(record, Window(payload, lambda: self._orders.count(held.checkpoint)))
            except Abandoned:
                self._say(f"the upload of checkpoint {held.checkpoint} is given up: its branch is dead")
            else:
                # Before it counts as done: a commit that is due must not be forgotten between the two.
                self._uploaded(held.checkpoint)
            pinned.settle()
        if not self._orders.count(held.checkpoint):
            tier.discard(held.checkpoint)  # the pin kept it when its branch was cleared away
        return True

    def _uploaded(self, checkpoint: CheckpointId) -> None:
        with self._lock:
            orders = self._orders
            if orders.slot == 0 and orders.count(checkpoint) and checkpoint not in self._given_up:
                self._uncommitted.setdefault(checkpoint, time.monotonic())

    def _commit_next(self) -> bool:
        orders = self._orders
        with self._lock:
            waiting = sorted(self._uncommitted.items(), reverse=True)
        for checkpoint, since in waiting:
            try:
                if not self._claim():
                    return False
                missing = self._run.commit(checkpoint, orders.lineage)
            except (Exists, NotOurs) as error:
                self._say(f"checkpoint {checkpoint} is not committed: {error}")
                self._give_up(checkpoint)
                continue
            if not missing:
                self._commit_done(checkpoint)
                self._delete_old(orders)
                return True
            if time.monotonic() - since > GIVE_UP_SECONDS:
                self._say(f"checkpoint {checkpoint} is not committed: the shards of ranks {missing[:8]} never came")
                self._give_up(checkpoint)
        return False

    def _commit_done(self, checkpoint: CheckpointId) -> None:
        self._committing()
        with self._lock:
            if self._orders.count(checkpoint):
                self._committed = max(checkpoint, self._committed or checkpoint)
            # Older ones that still wait for a shard are superseded.
            self._uncommitted = {c: since for c, since in self._uncommitted.items() if c.step > checkpoint.step}
        self._say(f"checkpoint {checkpoint} is in S3")

    def _give_up(self, checkpoint: CheckpointId) -> None:
        """It will not be whole: the next one will."""
        with self._lock:
            self._given_up.add(checkpoint)
            self._uncommitted.pop(checkpoint, None)

    def _delete_old(self, orders: Orders) -> None:
        def confirmed() -> bool:
            now = self._orders
            return now.attempt == orders.attempt and time.monotonic() - now.confirmed_at < self._deletion_seconds

        def may_delete() -> bool:
            return confirmed() and self._owns(orders.attempt)

        if orders.attempt and confirmed():
            deleted = self._run.retain(orders.attempt, orders.lineage, self._orders.keep_last, may_delete)
            if deleted:
                self._say(f"deleted from S3: {', '.join(str(checkpoint) for checkpoint in deleted)}")


def _pending(orders: Orders) -> list[tuple[int, Held]]:
    return [(rank, held) for rank, tier in orders.tiers.items() for held in tier.held() if held.pending]


def _settle(tier: MemoryTier, checkpoint: CheckpointId) -> None:
    try:
        pinned, _ = tier.pin(checkpoint)
    except NotHeld:
        return
    with pinned:
        pinned.settle()
