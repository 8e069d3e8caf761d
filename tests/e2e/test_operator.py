"""The operator dies at the worst moments, agents are cut off, ranks leave things behind. Mostly with own scripts."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import Apply, Operator
from jobs import TrainingJob, script, tiny, wait_until

pytestmark = pytest.mark.e2e

ENDLESS = "import time, os\nprint('started', os.environ['RANK'], flush=True)\ntime.sleep(3600)"


def pods_ever(job: TrainingJob) -> list[str]:
    """Names of every rank pod that was ever scheduled."""
    found = json.loads(job.kubectl("get", "events", "-n", job.namespace, "-o", "json").stdout)["items"]
    scheduled = [event for event in found if event["reason"] == "Scheduled"]
    return [(event.get("regarding") or event["involvedObject"])["name"] for event in scheduled]


@pytest.mark.parametrize("point", ["after-persist", "after-act"])
def test_killed_around_an_attempt(point: str, apply: Apply, operator: Operator) -> None:
    """The number that was persisted is used by the next life; nothing is started twice."""
    job = apply(script("loop", ENDLESS))
    job.wait_state("Running")
    before = job.uids()
    operator.environment(f"CIUIC_TEST_EXIT_AT={point}:attempt:2")
    try:
        job.signal_ranks(1)
        job.wait("attempt 2 runs", lambda s: s.get("attempt") == 2 and s.get("state") == "Running")
        restarted = operator.kubectl(
            "get", "pods", *operator.where, "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}"
        ).stdout
        assert "1" in restarted.split(), "the hook ended the operator once"
    finally:
        operator.environment("CIUIC_TEST_EXIT_AT-")
    status = job.status()
    assert status["attempt"] == 2 and status["restarts"]["total"] == 1 and job.uids() == before
    logs = job.kubectl("logs", job.pod_name(0), "-n", job.namespace).stdout
    assert logs.count("started 0") == 2, "once per attempt"


@pytest.mark.parametrize("point", ["after-persist", "after-act"])
def test_killed_around_the_creation_of_pods(point: str, apply: Apply, operator: Operator) -> None:
    operator.environment(f"CIUIC_TEST_EXIT_AT={point}:nextIncarnation:2")
    try:
        job = apply(script("loop", ENDLESS))
        job.wait_state("Running")
    finally:
        operator.environment("CIUIC_TEST_EXIT_AT-")
    names = pods_ever(job)
    assert len(names) == len(set(names)) and len(job.pods()) == 2
    assert job.status()["attempt"] == 1


@contextmanager
def cut_off(pod_ip: str) -> Iterator[None]:
    """Packets of the pod to the operator are dropped by the host that forwards them."""
    rule = ["FORWARD", "-s", pod_ip, "-p", "tcp", "--dport", "8443", "-j", "DROP"]
    subprocess.run(["iptables", "-I", *rule], check=True)
    try:
        yield
    finally:
        subprocess.run(["iptables", "-D", *rule], check=True)


def test_an_agent_cut_off_while_the_operator_restarts(apply: Apply, operator: Operator, run_name: str) -> None:
    job = apply(tiny("tiny", run_name, steps=100_000))
    job.wait_step(2)
    before = job.uids()
    with cut_off(job.pods()[1]["status"]["podIP"]):
        operator.kill()
        operator.wait()
        # A wrong restart would come as soon as the operator has heard one agent and not the other.
        at = job.wait("one of two agents is heard", lambda s: s.get("ready") == "1/2", 90)["highestStep"]
        watch_the_cut(job)
        assert job.status()["highestStep"] > at + 20, "the ranks do not need the operator"
    job.wait("both are heard", lambda s: s.get("ready") == "2/2", 60)
    status = job.status()
    assert status["attempt"] == 1 and status["restarts"]["total"] == 0 and job.uids() == before


def watch_the_cut(job: TrainingJob, seconds: float = 60.0) -> None:
    """The cut lasts this long; a restart in it is seen at once."""
    end = time.monotonic() + seconds
    wait_until("the cut's time", lambda: time.monotonic() > end or job.status()["attempt"] > 1, seconds + 5)
    assert job.status()["attempt"] == 1


def test_a_rank_killed_while_the_operator_is_away(apply: Apply, operator: Operator) -> None:
    job = apply(script("loop", ENDLESS))
    job.wait_state("Running")
    before = job.uids()
    operator.scale(0)
    try:
        job.signal_ranks(0)
    finally:
        operator.scale(1)
    status = job.wait("attempt 2 runs", lambda s: s.get("attempt") == 2 and s.get("state") == "Running", 90)
    assert status["restarts"]["total"] == 1 and job.uids() == before


def test_delete_with_the_operator_away(apply: Apply, operator: Operator) -> None:
    job = apply(script("loop", ENDLESS))
    job.wait_state("Running")
    operator.scale(0)
    try:
        job.delete()
        wait_until("pods go", lambda: job.pods() == {}, 60)
    finally:
        operator.scale(1)


GRANDCHILD = """
import subprocess, sys, time
hold = '''
import socket, time
s = socket.socket()
s.bind(('127.0.0.1', 45678))
s.listen()
print('holds the port', flush=True)
time.sleep(3600)
'''
subprocess.Popen([sys.executable, '-u', '-c', hold], start_new_session=True)
time.sleep(3600)
"""


def test_a_grandchild_that_holds_a_port_is_gone_before_the_next_attempt(apply: Apply) -> None:
    job = apply(script("holder", GRANDCHILD, nodes=1))
    job.wait_state("Running")

    def log() -> str:
        return str(job.kubectl("logs", job.pod_name(0), "-n", job.namespace).stdout)

    wait_until("the grandchild has the port", lambda: log().count("holds the port") == 1, 30, log)
    (rank, *_rest) = [int(pid) for pid in job.execute(0, "python", "-c", ONLY_RANK).split()]
    job.execute(0, "sh", "-c", f"kill -9 {rank}")
    job.wait("attempt 2 runs", lambda s: s.get("attempt") == 2 and s.get("state") == "Running")
    wait_until("the next one gets it", lambda: log().count("holds the port") == 2, 30, log)
    assert "Address already in use" not in log()


ONLY_RANK = """
import os
for name in os.listdir('/proc'):
    if name.isdigit() and int(name) != os.getpid():
        try:
            env = open(f'/proc/{name}/environ', 'rb').read().split(b'\\0')
            words = open(f'/proc/{name}/cmdline', 'rb').read()
        except OSError:
            continue
        if any(e.startswith(b'CIUIC_ATTEMPT=') for e in env) and b'subprocess' in words:
            print(name)
"""
