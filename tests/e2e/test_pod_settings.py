"""On a real pod: interface, huge pages, shared memory and cache are in force inside the ranks."""

import json

import pytest
from conftest import Apply
from jobs import script, wait_until

pytestmark = pytest.mark.e2e

LOOK = """
import ctypes, json, os, time
facts = {
    "thp": ctypes.CDLL(None).prctl(42, 0, 0, 0, 0),
    "nccl": os.environ.get("NCCL_SOCKET_IFNAME"),
    "gloo": os.environ.get("GLOO_SOCKET_IFNAME"),
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "cache": os.environ.get("CIUIC_CACHE_DIR"),
    "world": os.environ["WORLD_SIZE"],
    "secret": [name for name in os.environ if name.startswith("AWS_") or name == "CIUIC_AGENT_CONFIG"],
}
open(os.environ["CIUIC_CACHE_DIR"] + "/written", "w").write("x")
print("FACTS " + json.dumps(facts), flush=True)
time.sleep(3600)
"""


def test_they_are_in_force(apply: Apply) -> None:
    job = apply(
        script(
            "look",
            LOOK,
            network={"interface": "eth0"},
            memory={"shm": "96Mi", "transparentHugePages": "Never"},
            cache={"medium": "EmptyDir"},
        )
    )
    job.wait_state("Running")

    def facts() -> dict[str, object]:
        log = job.kubectl("logs", job.pod_name(1), "-n", job.namespace).stdout
        found = [line.split("FACTS ", 1)[1] for line in log.splitlines() if "FACTS " in line]
        return dict(json.loads(found[0])) if found else {}

    found = wait_until("the rank looked around", facts, 30, job.describe)
    assert found == {
        "thp": 1,
        "nccl": "=eth0",
        "gloo": "eth0",
        "shm": 96 * 1024**2,
        "cache": "/cache",
        "world": "2",
        "secret": [],
    }


def test_user_env_wins(apply: Apply) -> None:
    env = [{"name": "GLOO_SOCKET_IFNAME", "value": "lo"}]
    job = apply(
        script(
            "mine",
            "import os, time; print('IF', os.environ['GLOO_SOCKET_IFNAME'], flush=True); time.sleep(3600)",
            nodes=1,
            network={"interface": "eth0"},
            podTemplate={"spec": {"containers": [{"name": "trainer", "env": env}]}},
        )
    )
    job.wait_state("Running")
    wait_until("it is said", lambda: "IF lo" in job.tail(), 30, job.describe)
