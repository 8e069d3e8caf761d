"""Events on jobs, as `kubectl describe` shows them. Used by `execute` and `reconcile`."""

import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from ciuic_api import API_VERSION, KIND
from ciuic_api.reasons import Reason

from .errors import AlreadyExists
from .kube import JsonObject
from .model import Job

COMPONENT = "deepseekjob-operator"
REPEAT_SECONDS = 600.0
KEPT = 10_000
MESSAGE_MAX = 1024
"""The server refuses longer ones."""


class Events:
    def __init__(
        self,
        create: Callable[[str, JsonObject], Awaitable[None]],
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._create = create
        self._now = now
        self._clock = clock
        self._sent: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    async def emit(self, job: Job, reason: Reason, message: str, warning: bool) -> None:
        """Not when the same reason and message were sent for this job within the last ten minutes."""
        key = (job.uid, str(reason), message)
        sent = self._sent.get(key)
        if sent is not None and self._clock() - sent < REPEAT_SECONDS:
            return
        # It may exist: sent by this operator before it was restarted.
        with contextlib.suppress(AlreadyExists):
            await self._create(job.namespace, event(job, reason, message, warning, self._now()))
        self._sent[key] = self._clock()
        self._sent.move_to_end(key)
        while len(self._sent) > KEPT:
            self._sent.popitem(last=False)


def event(job: Job, reason: Reason, message: str, warning: bool, now: datetime) -> JsonObject:
    """Its name is made from what it says and the ten minutes it falls into: a restarted operator does not repeat it."""
    window = int(now.timestamp() // REPEAT_SECONDS)
    digest = hashlib.sha256(f"{job.uid}/{reason}/{message}/{window}".encode()).hexdigest()[:16]
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{digest}", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "reason": str(reason),
        "message": message[:MESSAGE_MAX],
        "type": "Warning" if warning else "Normal",
        "source": {"component": COMPONENT},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
