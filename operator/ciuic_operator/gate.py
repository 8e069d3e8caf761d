"""Who may speak for a rank pod. Asked by the hub for every connection and, cheaply, for every message.

Two things must hold: the token was issued for this very job object (its audience names namespace, name and UID), and
the pod it is bound to is a current one of that job. A token alone is not enough: a review says yes for a moment after
its pod was deleted by force, and for all the time that a replaced pod takes to end.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from ciuic_api.names import token_audience

from .errors import KubeError, NotFound, OperatorError
from .objects import PodRecord

POD_UID = "authentication.kubernetes.io/pod-uid"
POD_NAME = "authentication.kubernetes.io/pod-name"
REVIEW_SECONDS = 30.0
REVIEWS_KEPT = 20_000
REVIEWS_AT_ONCE = 16
"""Whoever reaches the port can cause reviews; they must not crowd out the operator's other calls."""
Extra = dict[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a connecting agent says of itself."""

    namespace: str
    job: str
    job_uid: str
    token: str
    remote: str
    """Address it connects from; for the log."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A proven rank pod."""

    pod_uid: str
    pod_name: str
    namespace: str
    job: str
    job_uid: str
    slot: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod_name}"


class Refused(OperatorError):
    def __init__(self, status: int, code: str, sentence: str, peer: str) -> None:
        super().__init__(sentence)
        self.status = status
        """HTTP status of the answer."""
        self.code = code
        """A word for logs and metrics."""
        self.peer = peer


class Gate:
    def __init__(
        self,
        *,
        review: Callable[[str, str], Awaitable[Extra | None]],
        find: Callable[[str], PodRecord | None],
        siblings: Callable[[str, int], Collection[PodRecord]],
        read: Callable[[str, str], Awaitable[PodRecord]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._review = review
        """Token and audience to the token's extra facts; None when it does not hold."""
        self._find = find
        """Pod by UID in our own watch."""
        self._siblings = siblings
        """All pods of a job UID's slot in our own watch."""
        self._read = read
        """A live read of a pod by namespace and name."""
        self._clock = clock
        self._reviewed: dict[str, tuple[float, Extra]] = {}
        self._slots = asyncio.Semaphore(REVIEWS_AT_ONCE)

    async def admit(self, claim: Claim) -> Peer:
        """Raises Refused."""
        if not (claim.namespace and claim.job and claim.job_uid and claim.token):
            raise Refused(401, "unauthenticated", "token and job headers are needed", claim.remote)
        try:
            facts = await self._facts(claim)
            if facts is None:
                sentence = f"the token does not hold for job {claim.namespace}/{claim.job} ({claim.job_uid})"
                raise Refused(401, "unauthenticated", sentence, claim.remote)
            pod_uid, pod_name = _one(facts, POD_UID), _one(facts, POD_NAME)
            if not pod_uid:
                raise Refused(401, "unauthenticated", "the token is bound to no pod", claim.remote)
            pod = self._find(pod_uid) or await self._live(claim.namespace, pod_name, pod_uid)
        except KubeError as error:
            sentence = f"tokens can not be reviewed now: {error}"
            raise Refused(503, "unavailable", sentence, claim.remote) from error
        if pod is None:
            raise Refused(403, "gone-pod", f"pod {pod_name} does not exist any more", f"{claim.namespace}/{pod_name}")
        peer = Peer(
            pod_uid=pod.uid,
            pod_name=pod.pod.name,
            namespace=pod.namespace,
            job=pod.job,
            job_uid=pod.owner,
            slot=pod.pod.slot,
            incarnation=pod.pod.incarnation,
        )
        if (peer.namespace, peer.job, peer.job_uid) != (claim.namespace, claim.job, claim.job_uid):
            sentence = f"pod {peer} is not one of job {claim.namespace}/{claim.job} ({claim.job_uid})"
            raise Refused(403, "wrong-job", sentence, str(peer))
        self.check(peer)
        return peer

    def check(self, peer: Peer) -> None:
        """Raises Refused when the pod has been replaced. Looks at our own watch only, so it may be asked all the time."""
        if peer.slot < 0 or peer.incarnation < 0:
            raise Refused(403, "no-slot", f"pod {peer} carries no slot and incarnation labels", str(peer))
        newest = max((p.pod.incarnation for p in self._siblings(peer.job_uid, peer.slot)), default=-1)
        if newest > peer.incarnation:
            sentence = f"pod {peer} was replaced: slot {peer.slot} belongs to incarnation {newest} now"
            raise Refused(403, "replaced-pod", sentence, str(peer))

    async def _facts(self, claim: Claim) -> Extra | None:
        audience = token_audience(claim.namespace, claim.job, claim.job_uid)
        key = hashlib.sha256(f"{audience}\0{claim.token}".encode()).hexdigest()
        known = self._reviewed.get(key)
        if known is not None and self._clock() - known[0] < REVIEW_SECONDS:
            return known[1]
        async with self._slots:
            facts = await self._review(claim.token, audience)
        if facts is not None:
            while len(self._reviewed) >= REVIEWS_KEPT:
                del self._reviewed[next(iter(self._reviewed))]
            self._reviewed[key] = (self._clock(), facts)
        return facts

    async def _live(self, namespace: str, name: str, uid: str) -> PodRecord | None:
        """Our watch does not know the pod: it may be behind, or the pod may be gone."""
        if not name:
            return None
        try:
            pod = await self._read(namespace, name)
        except NotFound:
            return None
        return pod if pod.uid == uid else None


def _one(facts: Extra, key: str) -> str:
    values = facts.get(key, ())
    return values[0] if len(values) == 1 else ""
