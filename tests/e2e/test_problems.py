"""Mistakes that only show later: on the job within 30 s, as a sentence, and restarting nothing in a loop."""

from typing import Any

import pytest
from conftest import Apply
from jobs import TrainingJob, tiny

pytestmark = pytest.mark.e2e

CASES: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "missing secret": ({"checkpoint": {"secretName": "nowhere"}}, "PodConfigError", ("nowhere",)),
    "unreachable endpoint": (
        {"checkpoint": {"s3": {"endpoint": "http://10.88.0.1:9"}}},
        "WaitingForStore",
        ("10.88.0.1:9",),
    ),
    "missing bucket": ({"checkpoint": {"path": "s3://no-such-bucket/x"}}, "StoreRefused", ("no-such-bucket",)),
    "missing config map": (
        {
            "podTemplate": {
                "spec": {
                    "containers": [{"name": "trainer", "volumeMounts": [{"name": "more", "mountPath": "/more"}]}],
                    "volumes": [{"name": "more", "configMap": {"name": "nowhere"}}],
                }
            }
        },
        "PodConfigError",
        ("FailedMount", "nowhere"),
    ),
    "image that does not exist": ({"image": "localhost/no-such-image:1"}, "ImageUnavailable", ("no-such-image",)),
    "job too large for the cluster": (
        {"podTemplate": {"spec": {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": "900"}}}]}}},
        "Unschedulable",
        ("cpu",),
    ),
    "memory tier that does not fit": (
        {"checkpoint": {"memory": {"everySteps": 2, "sizeLimit": "1Mi"}}},
        "MemoryTierTooSmall",
        ("sizeLimit", "1 MiB"),
    ),
    "interface that does not exist": ({"network": {"interface": "ib0"}}, "PreflightFailed", ("ib0", "eth0")),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_said_within_30_seconds(case: str, apply: Apply, run_name: str) -> None:
    changes, reason, words = CASES[case]
    job = apply(tiny("tiny", run_name, **changes))
    status = job.wait_reason(reason, 30)
    assert all(word in status["message"] for word in words), status["message"]
    assert_nothing_loops(job)


def test_a_rank_out_of_memory_says_so(apply: Apply, run_name: str) -> None:
    little = {"resources": {"requests": {"memory": "300Mi"}, "limits": {"memory": "300Mi"}}}
    template = {"spec": {"containers": [{"name": "trainer", **little}]}}
    job = apply(tiny("tiny", run_name, nodes=1, podTemplate=template))
    status = job.wait_state("Failed", 120)
    assert "out of memory at the container's limit of " in status["message"]


def test_wrong_credentials(apply: Apply, run_name: str) -> None:
    body = tiny("tiny", run_name, checkpoint={"secretName": "wrong"})
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "wrong"},
        "stringData": {"AWS_ACCESS_KEY_ID": "deepseek", "AWS_SECRET_ACCESS_KEY": "not-the-secret"},
    }
    job = apply(secret | {"metadata": {"name": "wrong"}})
    job = apply(body)
    status = job.wait_reason("StoreRefused", 30)
    assert "AWS_" in status["message"] or "credential" in status["message"].lower(), status["message"]
    assert_nothing_loops(job)


def assert_nothing_loops(job: TrainingJob) -> None:
    status = job.status()
    assert status.get("restarts", {}).get("total", 0) == 0 and status["attempt"] <= 1
    assert status.get("nextIncarnation", 0) in (0, 2), "no pod is created again"
