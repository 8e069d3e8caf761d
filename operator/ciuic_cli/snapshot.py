"""A job and its pods as the API server has them, turned into what the views need. Pure.

Tolerant on purpose: the tool may be older or newer than the operator, so nothing unknown is refused here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ciuic_api.conditions import WARNINGS
from ciuic_api.jobstatus import TERMINAL
from ciuic_api.names import CONTAINER, LABEL_INCARNATION, LABEL_SLOT

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    step: int
    attempt: int
    tier: str
    at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Failure:
    reason: str
    message: str
    slot: int | None
    rank: int | None
    node: str | None
    at: datetime | None
    recovered_seconds: int | None


@dataclass(frozen=True, kw_only=True)
class Warned:
    """A condition that says what is wrong beside the job's state."""

    kind: str
    message: str
    since: datetime | None


@dataclass(frozen=True, kw_only=True)
class Pod:
    name: str
    uid: str
    slot: int
    incarnation: int
    node: str
    phase: str
    """As people want it: Terminating, ImagePullBackOff or Completed rather than Pending or Running."""
    ready_to_log: bool
    """Its container has started at least once."""
    restarts: int
    created: datetime | None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    namespace: str
    name: str
    nodes: int
    ranks_per_node: int
    state: str
    reason: str
    message: str
    attempt: int
    restored: str
    """`20.a1`, or empty when the attempt started at step 0."""
    step: int
    total_steps: int | None
    loss: str | None
    eval_loss: str | None
    tokens_per_second: int | None
    eta_seconds: int | None
    ready: str
    restarts: int
    software_restarts: int
    disruptions: int
    ettr: str | None
    ettr_last_hour: str | None
    lost_steps: int
    last_checkpoint: Checkpoint | None
    last_committed: Checkpoint | None
    last_failure: Failure | None
    warnings: tuple[Warned, ...]
    started: datetime | None
    finished: datetime | None
    pods: tuple[Pod, ...]

    @property
    def over(self) -> bool:
        return self.state in TERMINAL


def snapshot(job: Json, pods: Iterable[Json]) -> Snapshot:
    spec, status, metadata = job.get("spec", {}), job.get("status") or {}, job["metadata"]
    counts, restored = status.get("restarts") or {}, status.get("restored")
    return Snapshot(
        namespace=metadata["namespace"],
        name=metadata["name"],
        nodes=spec.get("nodes", 0),
        ranks_per_node=spec.get("ranksPerNode", 1),
        state=status.get("state", "Pending"),
        reason=status.get("reason", ""),
        message=status.get("message") or "the operator has not seen this job yet",
        attempt=status.get("attempt", 0),
        restored=f"{restored['step']}.a{restored['attempt']}" if restored else "",
        step=status.get("step", 0),
        total_steps=status.get("totalSteps"),
        loss=status.get("loss"),
        eval_loss=status.get("evalLoss"),
        tokens_per_second=status.get("tokensPerSecond"),
        eta_seconds=status.get("etaSeconds"),
        ready=status.get("ready", ""),
        restarts=counts.get("total", 0),
        software_restarts=counts.get("software", 0),
        disruptions=counts.get("disruption", 0),
        ettr=status.get("ettr"),
        ettr_last_hour=status.get("ettrLastHour"),
        lost_steps=status.get("lostSteps", 0),
        last_checkpoint=_checkpoint(status.get("lastCheckpoint")),
        last_committed=_checkpoint(status.get("lastCommitted")),
        last_failure=_failure(status.get("lastFailure")),
        warnings=tuple(_warnings(status)),
        started=_time(status.get("startedAt")),
        finished=_time(status.get("finishedAt")),
        pods=tuple(sorted((_pod(pod) for pod in pods), key=lambda pod: (pod.slot, pod.incarnation))),
    )


def _checkpoint(value: Json | None) -> Checkpoint | None:
    if not value:
        return None
    return Checkpoint(
        step=value["step"], attempt=value["attempt"], tier=value.get("tier", "s3"), at=_time(value.get("at"))
    )


def _failure(value: Json | None) -> Failure | None:
    if not value:
        return None
    return Failure(
        reason=value.get("reason", ""),
        message=value.get("message", ""),
        slot=value.get("slot"),
        rank=value.get("rank"),
        node=value.get("node"),
        at=_time(value.get("at")),
        recovered_seconds=value.get("recoveredSeconds"),
    )


def _warnings(status: Json) -> Iterable[Warned]:
    for one in status.get("conditions") or ():
        if one["type"] in WARNINGS and one["status"] == "True":
            yield Warned(kind=one["type"], message=one.get("message", ""), since=_time(one.get("lastTransitionTime")))


def _pod(body: Json) -> Pod:
    metadata, status = body["metadata"], body.get("status") or {}
    labels = metadata.get("labels", {})
    containers = [c for c in status.get("containerStatuses") or () if c.get("name") == CONTAINER]
    container = containers[0] if containers else {}
    state, restarts = container.get("state") or {}, container.get("restartCount", 0)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        slot=int(labels.get(LABEL_SLOT, -1)),
        incarnation=int(labels.get(LABEL_INCARNATION, -1)),
        node=(body.get("spec") or {}).get("nodeName", ""),
        phase=_phase(metadata, status, state),
        ready_to_log=bool(restarts or "running" in state or "terminated" in state),
        restarts=restarts,
        created=_time(metadata.get("creationTimestamp")),
    )


def _phase(metadata: Json, status: Json, state: Json) -> str:
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    waiting = (state.get("waiting") or {}).get("reason")
    ended = (state.get("terminated") or {}).get("reason")
    unscheduled = any(
        c.get("type") == "PodScheduled" and c.get("status") == "False" for c in status.get("conditions") or ()
    )
    return str(
        status.get("reason") or waiting or ended or ("Unschedulable" if unscheduled else status.get("phase", ""))
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
