"""The Lease that makes this process the only operator of the cluster. Kept by `__main__`; asked by every write.

A holder that stops renewing is replaced after `seconds`; it stops writing by itself after two thirds of that, so that a
write under way is over before a successor begins. Times of other machines are never compared: what counts is how long
the Lease was seen unchanged here.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from .errors import AlreadyExists, Conflict, Forbidden, KubeError, LeaseLost, LeaseRefused
from .kube import JsonObject
from .settings import LEASE_NAME, LEASE_NAMESPACE

log = logging.getLogger(__name__)

ANNOTATION_RELEASE = "ciuic.io/release"


class Calls(Protocol):
    """What of Kube is needed here."""

    async def get_lease(self, seconds: float) -> JsonObject | None: ...
    async def create_lease(self, body: JsonObject, seconds: float) -> JsonObject: ...
    async def update_lease(self, body: JsonObject, seconds: float) -> JsonObject: ...


def uptime() -> float:
    """Goes on while the machine is suspended, unlike time.monotonic: a process that slept has lost its Lease."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    def __init__(
        self,
        calls: Calls,
        *,
        release: str,
        pod_uid: str,
        process: str,
        seconds: float,
        clock: Callable[[], float] = uptime,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._calls = calls
        self._release = release
        self._pod_uid = pod_uid
        self._identity = f"{release}/{pod_uid or 'outside'}/{process}"
        """`process` tells two processes of one pod apart: a container that was restarted is another holder."""
        self._seconds = seconds
        self._clock = clock
        self._now = now
        self._renewed_at = float("-inf")
        self._body: JsonObject = {}

    def held(self) -> bool:
        return self._clock() - self._renewed_at < self._seconds * 2 / 3

    @property
    def pause(self) -> float:
        """Between renewals, and between looks at a Lease that another holds."""
        return self._seconds / 10

    async def acquire(self) -> None:
        """Waits until the Lease is ours. Raises LeaseRefused when another release's operator holds it and lives."""
        seen: tuple[str, str] | None = None
        seen_at = self._clock()
        said = ""
        while True:
            sentence = ""
            try:
                body = await self._calls.get_lease(self.pause * 2)
                holder, release, renewed, lasts = _read(body)
                if body is None or not holder or self._is_predecessor(holder):
                    if await self._take(body):
                        return
                elif (holder, renewed) != seen:
                    if seen is not None and seen[0] == holder and release != self._release:
                        raise LeaseRefused(_refusal(holder, release))
                    seen, seen_at = (holder, renewed), self._clock()
                    sentence = f"waiting for the Lease that {holder} holds"
                elif self._clock() - seen_at > lasts:
                    log.info("the Lease of %s was not renewed for %.0f s and is taken", holder, lasts)
                    if await self._take(body):
                        return
            except Forbidden:
                raise
            except KubeError as error:
                sentence = f"the Lease can not be read or written, trying again: {error}"
            if sentence and sentence != said:
                said = sentence
                log.info(sentence)
            await asyncio.sleep(self.pause / 2)

    async def keep(self) -> None:
        """Renews for ever. Raises LeaseLost when the Lease is another's, or could not be renewed in time."""
        said = ""
        while True:
            await asyncio.sleep(self.pause)
            try:
                if not await self._renew():
                    self._renewed_at = float("-inf")
                    raise LeaseLost(f"the Lease belongs to {_read(await self._calls.get_lease(self.pause))[0]} now")
                said = ""
            except KubeError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("the Lease could not be renewed: %s", error)
            if not self.held():
                raise LeaseLost(f"the Lease could not be renewed for {self._seconds * 2 / 3:.0f} s")

    async def give_up(self) -> None:
        """At a clean end: the next operator need not wait."""
        if not self.held():
            return
        self._renewed_at = float("-inf")
        body = {**self._body, "spec": {**self._body["spec"], "holderIdentity": ""}}
        try:
            await self._calls.update_lease(body, self.pause)
        except KubeError as error:
            log.info("the Lease was not given up, it will run out: %s", error)

    def _is_predecessor(self, holder: str) -> bool:
        """A process of this very pod: its container was restarted, so it is dead. Or ourselves, of an answer lost."""
        same_pod = holder.startswith(f"{self._release}/{self._pod_uid}/")
        return same_pod or holder == self._identity

    async def _take(self, old: JsonObject | None) -> bool:
        asked_at = self._clock()
        try:
            if old is None:
                self._body = await self._calls.create_lease(self._as_body(None), self.pause * 2)
            else:
                self._body = await self._calls.update_lease(self._as_body(old), self.pause * 2)
        except (AlreadyExists, Conflict):
            return False
        self._renewed_at = asked_at
        return True

    async def _renew(self) -> bool:
        """False when another holds it."""
        asked_at = self._clock()
        try:
            self._body = await self._calls.update_lease(self._as_body(self._body), self.pause)
        except Conflict:
            # Somebody may have annotated it; what counts is who holds it.
            body = await self._calls.get_lease(self.pause)
            if _read(body)[0] != self._identity or body is None:
                return False
            self._body = await self._calls.update_lease(self._as_body(body), self.pause)
        self._renewed_at = asked_at
        return True

    def _as_body(self, old: JsonObject | None) -> JsonObject:
        moment = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, Any] = dict((old or {}).get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = moment
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        lasts = max(1, math.ceil(self._seconds))  # the server takes whole seconds only
        spec |= {"holderIdentity": self._identity, "renewTime": moment, "leaseDurationSeconds": lasts}
        meta: dict[str, Any] = dict((old or {}).get("metadata") or {"name": LEASE_NAME, "namespace": LEASE_NAMESPACE})
        meta["annotations"] = {**(meta.get("annotations") or {}), ANNOTATION_RELEASE: self._release}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


def _read(body: JsonObject | None) -> tuple[str, str, str, float]:
    """Holder, its release, the time of its last renewal as it wrote it, and the seconds that one lasts."""
    spec = (body or {}).get("spec") or {}
    annotations = ((body or {}).get("metadata") or {}).get("annotations") or {}
    return (
        str(spec.get("holderIdentity") or ""),
        str(annotations.get(ANNOTATION_RELEASE, "")),
        str(spec.get("renewTime") or ""),
        float(spec.get("leaseDurationSeconds") or 30),
    )


def _refusal(holder: str, release: str) -> str:
    whose = f"the release {release}" if release else holder
    return (
        f"an operator of {whose} runs in this cluster already (Lease {LEASE_NAMESPACE}/{LEASE_NAME}, holder {holder});"
        " one operator serves all namespaces: uninstall one of the two"
    )
