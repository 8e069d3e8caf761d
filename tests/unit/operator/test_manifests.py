"""Rank pods against golden files, and what merging may and may not do.

After a wanted change write the golden files anew: `GOLDEN=write python -m pytest tests/unit/operator/test_manifests.py`.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from builders import job
from ciuic_api import agent_config
from ciuic_operator.manifests import Platform, memory_tier_bytes, memory_tier_problem, merged, rank_pod

GOLDEN = Path(__file__).parent / "golden"
PLATFORM = Platform(hub_url="wss://hub.system.svc:8443/v1/agent", hub_ca_pem="CA", cluster="cluster-1")

CASES: dict[str, dict[str, Any]] = {
    "tiny": {"checkpoint": {"path": "s3://ckpt/runs", "secretName": "s3", "s3": {"endpoint": "http://s3:7070"}}},
    "article": {
        "nodes": 8,
        "ranksPerNode": 8,
        "accelerator": "nvidia",
        "network": {
            "interface": "ib0",
            "rdma": {"mode": "SharedDevice", "resourceName": "rdma/hca", "networks": "ib-net"},
        },
        "memory": {"shm": "64Gi", "transparentHugePages": "Never"},
        "cache": {"medium": "HostPath", "path": "/mnt/nvme0/cache"},
    },
    "own-script": {"command": ["python", "train.py"], "cache": {"medium": "EmptyDir", "size": "10Gi"}},
    "refined": {
        "podTemplate": {
            "metadata": {"annotations": {"sidecar.istio.io/inject": "true"}, "labels": {"team": "moe"}},
            "spec": {
                "nodeSelector": {"pool": "gpu"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                "containers": [
                    {
                        "name": "trainer",
                        "env": [{"name": "CIUIC_NODE_NAME", "value": "mine"}, {"name": "NCCL_DEBUG", "value": "WARN"}],
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        "resources": {"limits": {"memory": "2Gi"}},
                    },
                    {"name": "sidecar", "image": "logs:1"},
                ],
            },
        }
    },
}


def readable(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with the agent's configuration unpacked, so that a diff shows what changed."""
    for container in pod["spec"]["containers"]:
        for entry in container.get("env", ()):
            if entry["name"] == agent_config.ENV:
                entry["value"] = json.loads(entry["value"])
    return pod


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    pod = readable(rank_pod(job(**CASES[case]), 1, 7, PLATFORM))
    text = json.dumps(pod, indent=1, sort_keys=True) + "\n"
    path = GOLDEN / f"{case}.json"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


def environment(**fields: Any) -> dict[str, Any]:
    pod = rank_pod(job(**fields), 0, 0, PLATFORM)
    return {entry["name"]: entry for entry in pod["spec"]["containers"][0]["env"]}


def test_user_env_wins() -> None:
    env = environment(**CASES["refined"])
    assert env["CIUIC_NODE_NAME"] == {"name": "CIUIC_NODE_NAME", "value": "mine"}


def test_labels_of_the_protocol_win() -> None:
    template = {"metadata": {"labels": {"ciuic.io/slot": "9"}}}
    assert rank_pod(job(podTemplate=template), 1, 7, PLATFORM)["metadata"]["labels"]["ciuic.io/slot"] == "1"


def test_memory_tier_is_added_to_the_limit() -> None:
    pod = rank_pod(job(**CASES["refined"]), 0, 0, PLATFORM)
    limit = int(pod["spec"]["containers"][0]["resources"]["limits"]["memory"])
    assert limit == 2 * 1024**3 + memory_tier_bytes(job())


def test_memory_tier_that_does_not_hold_two_shards() -> None:
    assert memory_tier_problem(job()) is None
    small = job(checkpoint={"path": "s3://ckpt/a", "memory": {"sizeLimit": "1Mi"}})
    assert "sizeLimit is 1 MiB" in (memory_tier_problem(small) or "")


def test_merging_leaves_both_sides_alone() -> None:
    base, over = {"a": {"b": 1}, "list": [1]}, {"a": {"c": 2}, "list": [2]}
    assert merged(base, over) == {"a": {"b": 1, "c": 2}, "list": [2]}
    assert (base, over) == ({"a": {"b": 1}, "list": [1]}, {"a": {"c": 2}, "list": [2]})


def test_a_large_job_is_planned_in_milliseconds() -> None:
    pod = rank_pod(job(nodes=4096), 4095, 4095, PLATFORM)
    assert pod["metadata"]["name"] == "tiny-4095-4095"
