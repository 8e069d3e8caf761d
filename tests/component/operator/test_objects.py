"""Pods and nodes as the server writes them."""

from typing import Any

import msgspec
import pytest

from ciuic_operator.objects import NO_SLOT, node_record, pod_record


def pod(**parts: Any) -> bytes:
    """As the server has it: with fields that nobody asked for."""
    meta = {
        "name": "tiny-1-7",
        "namespace": "team",
        "uid": "u",
        "resourceVersion": "99",
        "creationTimestamp": "2026-11-30T12:00:00Z",
        "labels": {"ciuic.io/job": "tiny", "ciuic.io/slot": "1", "ciuic.io/incarnation": "7"},
        "ownerReferences": [
            {"uid": "else", "kind": "X", "name": "x", "apiVersion": "v1"},
            {
                "uid": "job",
                "kind": "DeepSeekJob",
                "name": "tiny",
                "apiVersion": "ciuic.io/v1alpha1",
                "controller": True,
            },
        ],
        "managedFields": [{"manager": "kubelet"}],
    }
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta | parts.pop("metadata", {}),
        "spec": {"containers": [], "nodeName": "node1"} | parts.pop("spec", {}),
        "status": {"phase": "Running", "podIP": "10.0.0.1"} | parts.pop("status", {}),
    }
    return msgspec.json.encode(body)


def container(name: str = "trainer", **fields: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "restartCount": 0, "image": "x", "state": {}, "lastState": {}} | fields


def test_identity() -> None:
    record = pod_record(pod())
    assert (record.uid, record.version, record.namespace, record.job, record.owner) == ("u", 99, "team", "tiny", "job")
    assert (record.pod.slot, record.pod.incarnation, record.pod.node, record.pod.phase) == (1, 7, "node1", "Running")
    assert not record.pod.deleting and record.pod.created_at is not None
    assert pod_record(pod(metadata={"deletionTimestamp": "2026-11-30T12:01:00Z"})).pod.deleting


@pytest.mark.parametrize("label", ["x", "", "-1", "1.5"])
def test_labels_that_name_no_slot(label: str) -> None:
    labels = {"ciuic.io/job": "tiny", "ciuic.io/slot": label, "ciuic.io/incarnation": "7"}
    assert pod_record(pod(metadata={"labels": labels})).pod.slot == NO_SLOT


def test_a_pod_without_owner() -> None:
    assert pod_record(pod(metadata={"ownerReferences": [{"uid": "job"}]})).owner == ""
    assert pod_record(b'{"metadata":{"name":"p","uid":"u","resourceVersion":"1"}}').pod.phase == "Pending"


def test_what_it_waits_for() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image x"}}
    seen = pod_record(pod(status={"containerStatuses": [container("side"), container(state=waiting)]})).pod
    assert (seen.waiting_reason, seen.waiting_message) == ("ImagePullBackOff", "Back-off pulling image x")
    init = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    initializing = {"waiting": {"reason": "PodInitializing"}}
    statuses = {
        "initContainerStatuses": [container("init", state=init)],
        "containerStatuses": [container(state=initializing)],
    }
    assert pod_record(pod(status=statuses)).pod.waiting_reason == "ErrImagePull"
    other = {"containerStatuses": [container("side", state=waiting)]}
    assert pod_record(pod(status=other)).pod.waiting_reason == "", "only the trainer container counts"


def test_why_it_is_not_scheduled() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: cpu"}
    assert pod_record(pod(status={"conditions": [condition]})).pod.unschedulable == "0/1 nodes: cpu"
    scheduled = condition | {"status": "True"}
    assert pod_record(pod(status={"conditions": [scheduled]})).pod.unschedulable == ""


def test_why_it_was_disrupted() -> None:
    assert pod_record(pod(status={"phase": "Failed", "reason": "Evicted"})).pod.status_reason == "Evicted"
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    assert pod_record(pod(status={"conditions": [target]})).pod.status_reason == "PreemptionByScheduler"
    assert pod_record(pod(status={"conditions": [target | {"status": "False"}]})).pod.status_reason == ""


def test_how_it_ended() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": ""}}
    seen = pod_record(pod(status={"containerStatuses": [container(restartCount=3, lastState=ended)]})).pod
    assert seen.exit_message == "OOMKilled, exit code 137" and seen.restarts == 3
    spoken = {"terminated": {"exitCode": 2, "reason": "Error", "message": "no such file\n"}}
    seen = pod_record(pod(status={"containerStatuses": [container(state=spoken, lastState=ended)]})).pod
    assert seen.exit_message == "Error, exit code 2: no such file", "the newest end counts"


def node(ready: str | None, *taints: dict[str, str]) -> bytes:
    conditions = [{"type": "MemoryPressure", "status": "False"}]
    conditions += [{"type": "Ready", "status": ready}] if ready else []
    meta = {"name": "n", "uid": "u", "resourceVersion": "5"}
    return msgspec.json.encode(
        {"metadata": meta, "spec": {"taints": list(taints)}, "status": {"conditions": conditions}}
    )


@pytest.mark.parametrize(("ready", "expected"), [("True", True), ("False", False), ("Unknown", False), (None, False)])
def test_node_readiness(ready: str | None, expected: bool) -> None:
    assert node_record(node(ready)).node.ready is expected


def test_node_taints() -> None:
    key = "node.kubernetes.io/unreachable"
    assert node_record(node("Unknown", {"key": key, "effect": "NoExecute"})).node.unreachable
    assert not node_record(node("Unknown", {"key": key, "effect": "NoSchedule"})).node.unreachable
    assert not node_record(node("True", {"key": "gpu", "effect": "NoExecute"})).node.unreachable
