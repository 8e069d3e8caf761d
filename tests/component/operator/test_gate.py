"""Who may speak for a pod: a token for this job object, bound to a pod that is a current one of it."""

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec
import pytest

from ciuic_api.names import token_audience
from ciuic_operator.errors import NotFound, Unavailable
from ciuic_operator.gate import REVIEW_SECONDS, Claim, Gate, Refused
from ciuic_operator.objects import PodRecord, pod_record
from component_bodies import pod_body

CLAIM = Claim(namespace="team", job="tiny", job_uid="u", token="t", remote="10.0.0.1")
AUDIENCE = token_audience("team", "tiny", "u")


def record(name: str, slot: int = 0, incarnation: int = 0, owner: str = "u", job: str = "tiny") -> PodRecord:
    return pod_record(msgspec.json.encode(pod_body(name, owner=owner, job=job, slot=slot, incarnation=incarnation)))


@dataclass
class Cluster:
    """What the gate asks."""

    watched: list[PodRecord] = field(default_factory=list)
    live: list[PodRecord] = field(default_factory=list)
    tokens: dict[tuple[str, str], str] = field(default_factory=dict)
    """(token, audience) to pod name."""
    reviews: int = 0
    down: bool = False
    now: float = 0.0

    async def review(self, token: str, audience: str) -> dict[str, tuple[str, ...]] | None:
        self.reviews += 1
        if self.down:
            raise Unavailable("no answer")
        name = self.tokens.get((token, audience))
        if name is None:
            return None
        return {
            "authentication.kubernetes.io/pod-uid": (f"uid-{name}",),
            "authentication.kubernetes.io/pod-name": (name,),
        }

    def find(self, uid: str) -> PodRecord | None:
        return next((record for record in self.watched if record.uid == uid), None)

    def siblings(self, owner: str, slot: int) -> Collection[PodRecord]:
        return [record for record in self.watched if (record.owner, record.pod.slot) == (owner, slot)]

    async def read(self, namespace: str, name: str) -> PodRecord:
        for found in self.live:
            if found.pod.name == name:
                return found
        raise NotFound(name)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(tokens={("t", AUDIENCE): "tiny-0-0"}, watched=[record("tiny-0-0")])


def gate(cluster: Cluster) -> Gate:
    return Gate(
        review=cluster.review,
        find=cluster.find,
        siblings=cluster.siblings,
        read=cluster.read,
        clock=lambda: cluster.now,
    )


async def refusal(cluster: Cluster, claim: Claim = CLAIM) -> tuple[int, str]:
    with pytest.raises(Refused) as refused:
        await gate(cluster).admit(claim)
    return refused.value.status, refused.value.code


def claim(**fields: str) -> Claim:
    values = {name: getattr(CLAIM, name) for name in ("namespace", "job", "job_uid", "token", "remote")}
    return Claim(**values | fields)


async def test_a_current_pod_is_admitted(cluster: Cluster) -> None:
    peer = await gate(cluster).admit(CLAIM)
    assert (peer.pod_uid, peer.job_uid, peer.slot, peer.incarnation) == ("uid-tiny-0-0", "u", 0, 0)


@pytest.mark.parametrize("missing", ["namespace", "job", "job_uid", "token"])
async def test_an_incomplete_claim_costs_no_review(cluster: Cluster, missing: str) -> None:
    assert await refusal(cluster, claim(**{missing: ""})) == (401, "unauthenticated")
    assert cluster.reviews == 0


async def test_a_token_for_another_job_object_does_not_hold(cluster: Cluster) -> None:
    assert await refusal(cluster, claim(job_uid="u2")) == (401, "unauthenticated")
    assert await refusal(cluster, claim(job="other")) == (401, "unauthenticated")
    assert await refusal(cluster, claim(token="forged")) == (401, "unauthenticated")


async def test_a_token_for_this_job_from_a_pod_of_another(cluster: Cluster) -> None:
    """Whoever may create pods may ask for any audience; what the pod is, is another matter."""
    cluster.watched = [record("tiny-0-0", owner="u2")]
    assert await refusal(cluster) == (403, "wrong-job")
    cluster.watched = [record("tiny-0-0", owner="")]
    assert await refusal(cluster) == (403, "wrong-job")
    cluster.watched = [record("tiny-0-0", job="other")]
    assert await refusal(cluster) == (403, "wrong-job")


async def test_a_replaced_pod_is_refused_however_alive(cluster: Cluster) -> None:
    cluster.watched.append(record("tiny-0-5", incarnation=5))
    assert await refusal(cluster) == (403, "replaced-pod")
    cluster.watched[1] = record("tiny-1-5", slot=1, incarnation=5)
    assert (await gate(cluster).admit(CLAIM)).incarnation == 0, "another slot's pod replaces nothing here"


async def test_a_peer_that_is_replaced_later_is_refused_then(cluster: Cluster) -> None:
    one = gate(cluster)
    peer = await one.admit(CLAIM)
    one.check(peer)
    cluster.watched.append(record("tiny-0-5", incarnation=5))
    with pytest.raises(Refused, match="belongs to incarnation 5"):
        one.check(peer)


async def test_a_pod_that_our_watch_does_not_know_is_read(cluster: Cluster) -> None:
    cluster.watched, cluster.live = [], [record("tiny-0-0")]
    assert (await gate(cluster).admit(CLAIM)).pod_name == "tiny-0-0"


async def test_a_pod_that_is_gone_is_refused_though_its_token_still_holds(cluster: Cluster) -> None:
    cluster.watched = []
    assert await refusal(cluster) == (403, "gone-pod")
    namesake = record("tiny-0-0")
    object.__setattr__(namesake, "uid", "another")
    cluster.live = [namesake]
    assert await refusal(cluster) == (403, "gone-pod")


async def test_a_pod_without_slot_is_refused(cluster: Cluster) -> None:
    cluster.watched = [record("tiny-0-0", slot=-1)]
    assert await refusal(cluster) == (403, "no-slot")


async def test_a_token_that_is_bound_to_no_pod(cluster: Cluster) -> None:
    async def review(token: str, audience: str) -> dict[str, tuple[str, ...]] | None:
        return {}

    one = Gate(review=review, find=cluster.find, siblings=cluster.siblings, read=cluster.read)
    with pytest.raises(Refused, match="bound to no pod"):
        await one.admit(CLAIM)


async def test_a_server_that_does_not_answer_is_no_verdict(cluster: Cluster) -> None:
    cluster.down = True
    assert await refusal(cluster) == (503, "unavailable")


async def test_reviews_are_remembered_for_a_short_while(cluster: Cluster) -> None:
    one = gate(cluster)
    await one.admit(CLAIM)
    cluster.now = REVIEW_SECONDS - 1
    await one.admit(CLAIM)
    assert cluster.reviews == 1
    cluster.now = REVIEW_SECONDS + 1
    await one.admit(CLAIM)
    assert cluster.reviews == 2
    for _ in range(2):
        with pytest.raises(Refused):
            await one.admit(claim(token="forged"))
    assert cluster.reviews == 4, "a refusal is not remembered: the token may be good in a moment"
