"""The chart's life: upgrade, a second release, uninstall and install again. A job trains through all of it."""

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import CHART, IMAGE_TAG, RELEASE, RELEASE_NAMESPACE, Apply, Command, Operator
from jobs import TrainingJob, script, tiny, wait_until

pytestmark = pytest.mark.e2e
ENDLESS = "import time; time.sleep(3600)"


@pytest.fixture
def job(apply: Apply) -> TrainingJob:
    running = apply(script("through", ENDLESS))
    running.wait_state("Running")
    return running


def assert_untouched(job: TrainingJob, uids: dict[int, str]) -> None:
    """All agents speak with the operator again, and nothing was restarted."""
    status = job.wait("agents are connected", lambda status: status.get("ready") == "2/2", 90)
    assert status["attempt"] == 1 and status["restarts"]["total"] == 0 and job.uids() == uids


def test_upgrade(job: TrainingJob, helm: Command, kubectl: Command, operator: Operator) -> None:
    def authority() -> str:
        where = ("-n", RELEASE_NAMESPACE, "-o", "jsonpath={.data}")
        return kubectl("get", "secret", f"{RELEASE}-hub-ca", *where).stdout

    uids, before = job.uids(), authority()
    chart = (str(CHART), "-n", RELEASE_NAMESPACE, "--reuse-values")
    helm("upgrade", RELEASE, *chart, "--set", "logLevel=DEBUG")
    operator.wait()
    assert authority() == before, "agents know this one"
    assert_untouched(job, uids)
    helm("upgrade", RELEASE, *chart, "--set", "logLevel=INFO")
    operator.wait()


@pytest.fixture
def second_release(helm: Command, kubectl: Command) -> Iterator[str]:
    name = "deepseekjob-second"
    switches = "crds.install=false,policies.install=false"
    settings = ("--create-namespace", "--set", f"image.tag={IMAGE_TAG},{switches}")
    helm("install", name, str(CHART), "-n", name, *settings)
    yield name
    helm("uninstall", name, "-n", name)
    kubectl("delete", "namespace", name, "--wait=false")


def test_a_second_release_is_refused_by_the_lease(
    job: TrainingJob, second_release: str, kubectl: Command, operator: Operator
) -> None:
    uids = job.uids()

    def words() -> str:
        where = ("-n", second_release, "-l", f"app.kubernetes.io/instance={second_release}", "--tail=50")
        return kubectl("logs", *where, check=False).stdout

    holder = f"{RELEASE_NAMESPACE}/{RELEASE}"
    wait_until("it names the holder", lambda: holder in words(), 60, words)
    assert_untouched(job, uids)


def test_uninstall_and_install_again(job: TrainingJob, helm: Command, kubectl: Command, operator: Operator) -> None:
    uids = job.uids()
    helm("uninstall", RELEASE, "-n", RELEASE_NAMESPACE, "--wait")
    try:
        assert kubectl("get", "crd", "deepseekjobs.ciuic.io", check=False).returncode == 0
        assert job.status()["state"] == "Running" and job.uids() == uids
    finally:
        helm("install", RELEASE, str(CHART), "-n", RELEASE_NAMESPACE, "--set", f"image.tag={IMAGE_TAG}", check=False)
        operator.wait()
    assert_untouched(job, uids)


ELSEWHERE = "deepseekjob-elsewhere"


@pytest.fixture
def moved(helm: Command, kubectl: Command, operator: Operator) -> Iterator[Operator]:
    """The release in another namespace, as after a change of mind; put back where the other tests look for it."""
    helm("uninstall", RELEASE, "-n", RELEASE_NAMESPACE, "--wait")
    settings = ("--create-namespace", "--take-ownership", "--set", f"image.tag={IMAGE_TAG}")
    try:
        helm("install", RELEASE, str(CHART), "-n", ELSEWHERE, *settings)
        there = Operator(kubectl, ELSEWHERE)
        there.wait()
        yield there
    finally:
        helm("uninstall", RELEASE, "-n", ELSEWHERE, "--wait", check=False)
        kubectl("delete", "namespace", ELSEWHERE, "--wait=false")
        helm("install", RELEASE, str(CHART), "-n", RELEASE_NAMESPACE, *settings)
        operator.wait()


def test_install_in_another_place(apply: Apply, run_name: str, request: pytest.FixtureRequest) -> None:
    """The agents know another address: nothing is restarted for that, it is said, and a suspension moves the job."""
    job = apply(tiny("moves", run_name, steps=100_000))
    job.wait_step(2)
    uids = job.uids()
    request.getfixturevalue("moved")
    said = job.wait("it is said", lambda status: condition(status, "AgentsElsewhere")["status"] == "True", 60)
    assert "suspend and resume" in condition(said, "AgentsElsewhere")["message"]
    assert said["attempt"] == 1 and said["restarts"]["total"] == 0 and job.uids() == uids
    job.patch({"runPolicy": {"suspend": True}})
    job.wait_state("Suspended", 90)
    job.patch({"runPolicy": {"suspend": False}})
    status = job.wait("it trains under the new one", lambda s: s.get("state") == "Running" and s["attempt"] == 2, 90)
    assert status["restored"]["step"] >= said["highestStep"], "its last steps were kept on the way"
    assert status["ready"] == "2/2" and condition(status, "AgentsElsewhere")["status"] == "False"


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    found = [one for one in status.get("conditions", []) if one["type"] == kind]
    return found[0] if found else {"status": "Unknown"}
