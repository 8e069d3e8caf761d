"""A metadata list of all jobs every minute: what kopf's stream may have missed. Run by `__main__`.

kopf makes no deletion of what vanished while its stream was down, and a stream that has died silently looks like one
that has nothing to tell. The list retires what is gone, reads what the stream owes us, and so knows the stream's age.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .errors import KubeError, NotFound
from .jobs import Jobs
from .kube import JobKey

log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0


class Sweep:
    def __init__(
        self,
        *,
        jobs: Jobs,
        list_jobs: Callable[[], Awaitable[tuple[int, tuple[JobKey, ...]]]],
        read_job: Callable[[str, str], Awaitable[Mapping[str, Any]]],
        seen: Callable[[Mapping[str, Any]], None],
        gone: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._list_jobs = list_jobs
        self._read_job = read_job
        self._seen = seen
        self._gone = gone
        self._clock = clock
        self._listed_at = clock()

    def age(self) -> float:
        """Seconds since kopf's stream last was known to be complete."""
        return max(self._jobs.stream_age(), self._clock() - self._listed_at - EVERY_SECONDS)

    async def run(self) -> None:
        said = ""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                await self.once()
                said = ""
            except KubeError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("jobs can not be listed: %s", error)

    async def once(self) -> None:
        version, keys = await self._list_jobs()
        gone, missed = self._jobs.compare(version, keys)
        self._listed_at = self._clock()
        for uid in gone:
            self._gone(uid)
        for key in missed:
            try:
                body = await self._read_job(key.namespace, key.name)
            except NotFound:
                continue
            self._seen(body)
