"""Keeps what was seen of a failure: asked for by the operator when nothing moves, by itself when a rank ends badly.

Used by `runtime` on its event loop. Collecting and uploading happen in a thread, and nobody waits for either.
"""

import asyncio
import json
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from ciuic_api.protocol import Evidence, Stack

from . import evidence
from .evidence import Subject
from .run_store import RunStore
from .store import StoreError

Collect = Callable[[], tuple[tuple[Stack, ...], dict[str, Any]]]


@dataclass
class Witness:
    store: RunStore | None
    threads: Executor
    say: Callable[[str], None]
    told: Callable[[], None]
    """Called, on the loop, when there is more to report."""
    newest: Evidence | None = None
    _taken: set[tuple[int, int]] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def ask(self, attempt: int, number: int, slot: int, look: Callable[[], Sequence[Subject]]) -> None:
        """What ranks do that do not move. The same question again changes nothing, and looks at nothing."""
        if self._is_new(attempt, number):
            subjects = look()
            self._begin(attempt, number, slot, lambda: evidence.collect(subjects))

    def keep(self, attempt: int, slot: int, look: Callable[[], Sequence[Subject]]) -> None:
        """What is known of ranks of which one ended badly: the others are about to be killed."""
        if self._is_new(attempt, 0):
            whole = evidence.known(look())
            self._begin(attempt, 0, slot, lambda: ((), whole))

    def _is_new(self, attempt: int, number: int) -> bool:
        new = (attempt, number) not in self._taken
        self._taken.add((attempt, number))
        return new

    def _begin(self, attempt: int, number: int, slot: int, collect: Collect) -> None:
        task = asyncio.create_task(self._take(attempt, number, slot, collect))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, attempt: int, number: int, slot: int, collect: Collect) -> None:
        loop = asyncio.get_running_loop()
        try:
            stacks, whole = await loop.run_in_executor(self.threads, collect)
        except Exception as error:  # noqa: BLE001 - whatever it is, recovery goes on without
            self.say("".join(traceback.format_exception(error)))
            stacks, whole = (), {"error": repr(error)}
        self._tell(Evidence(attempt=attempt, number=number, stacks=stacks))
        if self.store is None:
            return
        name = f"a{attempt}/slot-{slot:05d}" + (f"-{number}" if number else "") + ".json"
        data = json.dumps({"attempt": attempt, "slot": slot} | whole, indent=1).encode()
        store = self.store
        try:
            place = await loop.run_in_executor(self.threads, lambda: store.put_evidence(name, data))
        except StoreError as error:
            self.say(f"evidence {name} could not be uploaded: {error}")
            return
        self._tell(Evidence(attempt=attempt, number=number, stacks=stacks, place=place))

    def _tell(self, found: Evidence) -> None:
        self.newest = found
        self.told()
