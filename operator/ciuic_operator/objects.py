"""Pods and nodes of the API server as the operator's own small values. Parsed once, where they come in; used by `watches`.

Partial structs: what is not named here is skipped by the decoder, so that a pod costs microseconds and a kilobyte.
"""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from ciuic_api import names

from .model import Node, Pod


class _Json(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Owner(_Json, frozen=True):
    uid: str
    controller: bool = False


class _Meta(_Json, frozen=True):
    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[_Owner, ...] = ()
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None


class _Waiting(_Json, frozen=True):
    reason: str = ""
    message: str = ""


class _Terminated(_Json, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class _State(_Json, frozen=True):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _Container(_Json, frozen=True):
    name: str
    restart_count: int = 0
    state: _State = _State()
    last_state: _State = _State()


class _Condition(_Json, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _PodStatus(_Json, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    conditions: tuple[_Condition, ...] = ()
    container_statuses: tuple[_Container, ...] = ()
    init_container_statuses: tuple[_Container, ...] = ()


class _PodSpec(_Json, frozen=True):
    node_name: str = ""


class _Pod(_Json, frozen=True):
    metadata: _Meta
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class _Taint(_Json, frozen=True):
    key: str
    effect: str


class _NodeSpec(_Json, frozen=True):
    taints: tuple[_Taint, ...] = ()


class _NodeStatus(_Json, frozen=True):
    conditions: tuple[_Condition, ...] = ()


class _Node(_Json, frozen=True):
    metadata: _Meta
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


@dataclass(frozen=True, kw_only=True, slots=True)
class PodRecord:
    uid: str
    version: int
    """resourceVersion: a later write of the same kind of object has a greater one."""
    namespace: str
    job: str
    """Name in the label ciuic.io/job."""
    owner: str
    """UID of the controlling owner; empty for a pod that nobody owns (any more)."""
    pod: Pod


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRecord:
    uid: str
    version: int
    node: Node


_decode_pod = msgspec.json.Decoder(_Pod).decode
_decode_node = msgspec.json.Decoder(_Node).decode
UNREACHABLE_TAINTS = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})
NO_SLOT = -1
"""Of a pod whose labels name none: it is nobody's rank, whoever owns it."""


def pod_record(raw: bytes | msgspec.Raw) -> PodRecord:
    """Raises msgspec.DecodeError when `raw` is no pod."""
    pod = _decode_pod(raw)
    meta = pod.metadata
    container, init = _trainer(pod), next((c for c in pod.status.init_container_statuses if c.state.waiting), None)
    waiting = container.state.waiting
    if init is not None and (waiting is None or waiting.reason in ("PodInitializing", "")):
        waiting = init.state.waiting
    scheduled, disrupted = _condition(pod, "PodScheduled"), _condition(pod, "DisruptionTarget")
    return PodRecord(
        uid=meta.uid,
        version=int(meta.resource_version),
        namespace=meta.namespace,
        job=meta.labels.get(names.LABEL_JOB, ""),
        owner=next((owner.uid for owner in meta.owner_references if owner.controller), ""),
        pod=Pod(
            name=meta.name,
            uid=meta.uid,
            slot=_number(meta.labels.get(names.LABEL_SLOT)),
            incarnation=_number(meta.labels.get(names.LABEL_INCARNATION)),
            hub=meta.annotations.get(names.ANNOTATION_HUB, ""),
            phase=pod.status.phase,
            node=pod.spec.node_name or None,
            deleting=meta.deletion_timestamp is not None,
            created_at=meta.creation_timestamp,
            waiting_reason=waiting.reason if waiting else "",
            waiting_message=waiting.message if waiting else "",
            unschedulable=scheduled.message if scheduled and scheduled.status == "False" else "",
            status_reason=pod.status.reason or (disrupted.reason if disrupted and disrupted.status == "True" else ""),
            exit_message=_exit_message(container),
            restarts=container.restart_count,
        ),
    )


def node_record(raw: bytes | msgspec.Raw) -> NodeRecord:
    """Raises msgspec.DecodeError when `raw` is no node."""
    node = _decode_node(raw)
    ready = next((c.status == "True" for c in node.status.conditions if c.type == "Ready"), False)
    unreachable = any(t.key in UNREACHABLE_TAINTS and t.effect == "NoExecute" for t in node.spec.taints)
    meta = node.metadata
    return NodeRecord(
        uid=meta.uid,
        version=int(meta.resource_version),
        node=Node(name=meta.name, ready=ready, unreachable=unreachable),
    )


def _trainer(pod: _Pod) -> _Container:
    found = (c for c in pod.status.container_statuses if c.name == names.CONTAINER)
    return next(found, _Container(name=names.CONTAINER))


def _condition(pod: _Pod, kind: str) -> _Condition | None:
    return next((c for c in pod.status.conditions if c.type == kind), None)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else NO_SLOT


def _exit_message(container: _Container) -> str:
    ended = container.state.terminated or container.last_state.terminated
    if ended is None:
        return ""
    how = f"{ended.reason or 'Ended'}, exit code {ended.exit_code}"
    return f"{how}: {ended.message.strip()}" if ended.message.strip() else how
