"""Bodies of jobs and pods as the API server holds them, for component tests."""

from typing import Any


def job_body(
    uid: str = "u",
    version: int = 1,
    name: str = "tiny",
    meta: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "apiVersion": "ciuic.io/v1alpha1",
        "kind": "DeepSeekJob",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid,
            "resourceVersion": str(version),
            "generation": 1,
            "creationTimestamp": "2026-11-30T12:00:00Z",
            **(meta or {}),
        },
        "spec": {"nodes": 2, "accelerator": "cpu", "command": ["python", "x.py"], **spec},
    }
    if status is not None:
        body["status"] = status
    return body


def pod_body(
    name: str, version: int = 1, owner: str = "u", job: str = "tiny", slot: int = 0, incarnation: int = 0, **parts: Any
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {"ciuic.io/job": job, "ciuic.io/slot": str(slot), "ciuic.io/incarnation": str(incarnation)},
            "ownerReferences": [{"uid": owner, "controller": True}],
            **parts.pop("metadata", {}),
        },
        **parts,
    }
