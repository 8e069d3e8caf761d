"""Brings the checkpoint of an attempt into memory, and knows what became of it. Used by `runtime`."""

import asyncio
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Executor

from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import AgentFailure, RestoreFailure
from ciuic_trainer.shared.memory_tier import MemoryTierError

from . import memory
from .off_loop import in_thread
from .records import Damaged
from .run_store import RunStore
from .store import Refused, StoreError, Unreachable

FETCH_AGAIN_SECONDS = 1.0


class Restoring:
    def __init__(
        self, store: RunStore | None, threads: Executor, say: Callable[[str], None], told: Callable[[], None]
    ) -> None:
        """`told` is called, on the loop, when something has come of it."""
        self._store = store
        self._threads = threads
        self._say = say
        self._told = told
        self._task: asyncio.Task[None] | None = None
        self.forget()

    def forget(self) -> None:
        """Another attempt begins. A restore of the one before notices by its `wanted`."""
        self.restored: CheckpointId | None = None
        self.failed: RestoreFailure | None = None
        """Something is wrong with the checkpoint: the attempt needs another one."""
        self.broken: AgentFailure | None = None
        """Something is wrong with this pod."""
        self.waits: tuple[float, str] | None = None
        """Since when the store has been waited for, and what it says."""

    def start(self, checkpoint: CheckpointId, tiers: memory.Tiers, wanted: Callable[[], bool]) -> None:
        """Once more if the last time ended without a result; never two at a time."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._restore(checkpoint, tiers, wanted))

    async def _restore(self, checkpoint: CheckpointId, tiers: memory.Tiers, wanted: Callable[[], bool]) -> None:
        store, say = self._store, self._say
        outcome = await in_thread(self._threads, lambda: memory.fetch(tiers, checkpoint, store, wanted, say))
        if not wanted():
            return
        if outcome is None:
            self.restored, self.waits = checkpoint, None
        elif isinstance(outcome, (Unreachable, Refused, memory.Busy)):
            # Nothing is wrong with the checkpoint: that it can not be had now must not cost it.
            message = f"checkpoint {checkpoint} is waited for: {outcome}"
            if self.waits is None or self.waits[1] != message:
                self._say(message)
            self.waits = self.waits[0] if self.waits is not None else time.monotonic(), message
            await asyncio.sleep(FETCH_AGAIN_SECONDS)
        elif isinstance(outcome, (Damaged, StoreError, MemoryTierError)):
            self._say(f"checkpoint {checkpoint} can not be restored: {outcome}")
            self.failed = RestoreFailure(checkpoint=checkpoint, why=str(outcome))
        elif isinstance(outcome, memory.NoRoom):
            self._say(str(outcome))
            self.broken = AgentFailure(reason="MemoryTierFull", message=str(outcome), fingerprint="MemoryTierFull")
        else:
            self._say("".join(traceback.format_exception(outcome)))
            message = f"checkpoint {checkpoint} could not be brought into memory: {outcome!r}"
            self.broken = AgentFailure(reason="RestoreBroken", message=message, fingerprint="RestoreBroken")
        self._told()
