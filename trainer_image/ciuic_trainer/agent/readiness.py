"""Whether this pod can take part in an attempt: its preflight, and which memory copies are sound. Used by `runtime`."""

import asyncio
import traceback
from collections.abc import Callable
from concurrent.futures import Executor

from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import Preflight, PreflightProblem

from . import memory, preflight
from .off_loop import in_thread

CHECK_AGAIN_SECONDS = 10.0
"""How often the pod is checked again while something is wrong with it."""


class Readiness:
    def __init__(
        self, interface: str | None, threads: Executor, say: Callable[[str], None], told: Callable[[], None]
    ) -> None:
        """`told` is called, on the loop, when there is more to report."""
        self._interface = interface
        self._threads = threads
        self._say = say
        self._told = told
        self._task: asyncio.Task[None] | None = None
        self.verified: tuple[CheckpointId, ...] = ()
        """Copies in memory that were read and found whole, of every rank here."""
        self.checked: Preflight | None = None
        """None while it is not known: the attempt is ready when both are."""

    def begin(self, tiers: memory.Tiers, wanted: Callable[[], bool]) -> None:
        """For another attempt: what was found for the one before counts no more."""
        self.verified, self.checked = (), None
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._check(tiers, wanted))

    async def _check(self, tiers: memory.Tiers, wanted: Callable[[], bool]) -> None:
        verified = await in_thread(self._threads, lambda: memory.verified(tiers, self._say))
        if isinstance(verified, Exception):
            self._say("".join(traceback.format_exception(verified)))
            verified = ()
        while wanted():
            checked = await in_thread(self._threads, lambda: preflight.check(self._interface))
            if isinstance(checked, Exception):
                problem = PreflightProblem(code="CheckFailed", message=f"the pod could not be checked: {checked!r}")
                checked = Preflight(problems=(problem,))
            if checked != self.checked:
                for problem in checked.problems:
                    self._say(f"{problem.code}: {problem.message}")
            self.verified, self.checked = verified, checked
            self._told()
            if not checked.problems:
                return
            await asyncio.sleep(CHECK_AGAIN_SECONDS)
