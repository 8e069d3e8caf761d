"""The operator as a process against a real API server, with its own rights alone; pods have pretend agents."""

import json
from pathlib import Path
from typing import Any

import pytest

from api_server import ApiServer
from chat_server import chat_server
from ciuic_api.protocol import AgentState
from ciuic_operator.execute import HOOK_EXIT_CODE
from live_job import LiveJob
from operator_process import LEASE_SECONDS, RELEASE_NAMESPACE, OperatorProcess, operator_process
from waiting import eventually


async def test_from_apply_to_training_and_over_a_lost_rank(operator: OperatorProcess, job: LiveJob) -> None:
    await operator.start()
    await job.runs()
    before = job.uids()
    assert job.states() == [AgentState.RUNNING] * 2
    owner = job.body()["metadata"]
    assert "finalizers" not in owner and "annotations" not in owner, "kubectl delete works with the operator down"
    assert owner["labels"] == {"ciuic.io/watchdog": "true"}
    for pod in job.pods().values():
        (reference,) = pod["metadata"]["ownerReferences"]
        assert reference["uid"] == owner["uid"] and reference["controller"] and not reference["blockOwnerDeletion"]
    job.agents["tiny-1-1"].lose_rank()
    status = await job.has("a new attempt", state="Running", attempt=2)
    assert status["restarts"] == {"total": 1, "software": 1, "disruption": 0} and status["lastFailure"]["rank"] == 1
    assert job.uids() == before, "healthy pods stay"
    for agent in job.agents.values():
        attempts = [directive.attempt for directive in agent.told]
        assert attempts == sorted(attempts) and agent.attempt == 2
    reasons = [reason for reason, _ in job.events()]
    assert {"CreatingPods", "Training", "RankKilled"} <= set(reasons) and len(reasons) == len(set(job.events()))
    code, metrics = operator.fetch("/metrics")
    assert code == 200 and "deepseekjob_agents_connected 2.0" in metrics
    assert f'deepseekjob_job_attempt{{name="tiny",namespace="{job.namespace}"}} 2.0' in metrics
    assert 'deepseekjob_restarts_total{class="software"} 1.0' in metrics
    assert operator.fetch("/healthz") == (200, "ok")
    await job.stop_agents()
    assert await operator.stop() == 0
    assert "ERROR" not in operator.log and "Traceback" not in operator.log


async def test_a_restart_changes_nothing(operator: OperatorProcess, job: LiveJob) -> None:
    await operator.start()
    await job.runs()
    before, told = job.uids(), {name: len(agent.told) for name, agent in job.agents.items()}
    for step, way in ((7, operator.kill), (9, operator.stop)):
        await way()
        for agent in job.agents.values():
            agent.step = step
        await operator.start()
        # Only a decision with the reports of both at hand knows this step.
        status = await job.has("both agents are back", highestStep=step, ready="2/2")
        assert status["state"] == "Running" and status["attempt"] == 1 and status["restarts"]["total"] == 0
    assert job.uids() == before
    for name, agent in job.agents.items():
        assert agent.state is AgentState.RUNNING
        assert all(directive.run and directive.attempt == 1 for directive in agent.told[told[name] :])
    await job.stop_agents()


async def test_a_failure_while_the_operator_is_down_is_recovered(operator: OperatorProcess, job: LiveJob) -> None:
    await operator.start()
    await job.runs()
    await operator.kill()
    job.agents["tiny-0-0"].lose_rank()
    await operator.start()
    await job.has("a new attempt", state="Running", attempt=2)
    assert set(job.pods()) == {"tiny-0-0", "tiny-1-1"}
    await job.stop_agents()


async def test_alerts_reach_the_chat_and_are_not_repeated(
    operator: OperatorProcess, job: LiveJob, tmp_path: Path
) -> None:
    receivers = [{"name": "oncall", "type": "webhook"}, {"name": "deaf", "type": "wecom", "language": "zh"}]
    settings = {"CIUIC_ALERT_RECEIVERS": json.dumps(receivers), "CIUIC_ALERTS_FOLDER": str(tmp_path)}
    async with chat_server() as chat:
        (tmp_path / "oncall").mkdir()
        (tmp_path / "oncall/url").write_text(f"{chat.url}/hook/0123456789abcdef")
        await operator.start(**settings)
        await job.runs(alerts=[{"receiver": name} for name in ("oncall", "deaf", "nobody")])
        names = "spec.alerts names nobody, but the chart defines: deaf, oncall"
        await eventually(
            "the unknown one is said", lambda: [m for r, m in job.events() if names in m and r == "UnknownReceiver"]
        )
        job.agents["tiny-1-1"].lose_rank()
        await job.has("a new attempt", state="Running", attempt=2)
        await operator.stop()
        await operator.start(**settings)
        job.agents["tiny-0-0"].lose_rank()
        await job.has("another attempt", state="Running", attempt=3)
        await operator.stop()
        told = [(alert["kind"], alert["attempt"]) for got in chat.got for alert in got.body["alerts"]]
        assert told == [("Restarting", 2), ("Recovered", 2), ("Restarting", 3), ("Recovered", 3)]
        assert chat.got[0].body["alerts"][0]["rank"] == 1 and {got.path for got in chat.got} == {
            "/hook/0123456789abcdef"
        }
    assert "its Secret has no key `url`" in operator.log and "0123456789abcdef" not in operator.log
    assert "ERROR" not in operator.log and "Traceback" not in operator.log
    await job.stop_agents()


@pytest.mark.parametrize("point", ["after-persist", "after-act"])
async def test_ended_around_the_creation_of_pods(operator: OperatorProcess, job: LiveJob, point: str) -> None:
    await operator.start(CIUIC_TEST_EXIT_AT=f"{point}:nextIncarnation:2")
    job.apply()
    assert await operator.ended() == HOOK_EXIT_CODE
    assert job.status()["nextIncarnation"] == 2
    assert set(job.pods()) == (set() if point == "after-persist" else {"tiny-0-0", "tiny-1-1"})
    await operator.start(CIUIC_TEST_EXIT_AT=f"{point}:nextIncarnation:2")
    if point == "after-persist":
        await job.has_pods("tiny-0-2", "tiny-1-3")
    job.connect()
    status = await job.has("it runs", state="Running", attempt=1)
    assert status["nextIncarnation"] == (4 if point == "after-persist" else 2)
    assert len(job.pods()) == 2, "nothing is started twice"
    await job.stop_agents()


@pytest.mark.parametrize("point", ["after-persist", "after-act"])
async def test_ended_around_a_new_attempt(operator: OperatorProcess, job: LiveJob, point: str) -> None:
    hook = {"CIUIC_TEST_EXIT_AT": f"{point}:attempt:2"}
    await operator.start(**hook)
    await job.runs()
    job.agents["tiny-1-1"].lose_rank()
    assert await operator.ended() == HOOK_EXIT_CODE
    assert job.status()["attempt"] == 2
    if point == "after-persist":
        assert all(directive.attempt < 2 for agent in job.agents.values() for directive in agent.told)
    await operator.start(**hook)
    status = await job.has("attempt 2 runs", state="Running", attempt=2)
    assert status["restarts"]["total"] == 1 and status["nextIncarnation"] == 2
    for agent in job.agents.values():
        runs = [directive.attempt for directive in agent.told if directive.run]
        assert sorted(set(runs)) == [1, 2], "no number is used twice, none is left out"
    await job.stop_agents()


async def test_a_job_that_is_made_anew_waits_for_the_old_ones_pods(
    operator: OperatorProcess, job: LiveJob, api: ApiServer
) -> None:
    await operator.start()
    await job.runs()
    # On a node, a deleted pod ends when its kubelet says so: here, never.
    target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "tiny-0-0"}, "target": target}
    path = f"/api/v1/namespaces/{job.namespace}/pods/tiny-0-0/binding"
    api.kubectl("create", "--raw", path, "-f", "-", stdin=binding)
    old = job.uids()
    job.kubectl("delete", "dsj", "tiny")
    job.apply()
    job.kubectl("delete", "pods", "--all", "--wait=false")
    status = await job.has("it waits", reason="WaitingForOldPods")
    assert "tiny-0-0" in status["message"] and status["attempt"] == 0
    assert job.uids() == {"tiny-0-0": old["tiny-0-0"]}
    job.kubectl("delete", "pod", "tiny-0-0", "--grace-period=0", "--force")
    await job.has_pods("tiny-0-0", "tiny-1-1")
    assert not set(job.uids().values()) & set(old.values()), "no dying pod is adopted"
    await eventually("the old pods' agents are refused", lambda: set(job.agents["tiny-0-0"].refusals) & {"401", "403"})
    await job.stop_agents()


async def test_pods_that_are_refused_are_said_and_tried_again(
    operator: OperatorProcess, job: LiveJob, api: ApiServer
) -> None:
    await operator.start()
    limit = {"type": "Container", "max": {"memory": "1Mi"}}
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "tight"}, "spec": {"limits": [limit]}}
    api.kubectl("create", "-n", job.namespace, "-f", "-", stdin=body)
    greedy = {"name": "trainer", "resources": {"limits": {"memory": "2Gi"}}}
    job.apply(podTemplate={"spec": {"containers": [greedy]}})
    status = await job.has("it is said", reason="PodConfigError", state="Pending")
    assert "maximum memory" in status["message"] and "tiny-0-" not in status["message"]
    said = [message for reason, message in job.events() if reason == "PodConfigError"]
    assert len(said) == 1
    job.kubectl("delete", "limitrange", "tight")
    await eventually("pods", lambda: len(job.pods()) == 2, seconds=60.0, pause=0.2)
    await job.has("it goes on", reason="WaitingForPods")


async def test_only_the_jobs_own_pods_may_speak(operator: OperatorProcess, job: LiveJob) -> None:
    await operator.start()
    job.apply()
    await job.has_pods("tiny-0-0", "tiny-1-1")
    other_audience = job.agent("tiny-0-0", audience="deepseekjob/team/other/uid")
    forged = job.agent("tiny-0-0")
    forged.token = f"{forged.token[:-8]}AAAAAAAA"
    # A pod of the same namespace may ask for any audience; it is still not a pod of this job.
    stranger = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "labels": job.pods()["tiny-0-0"]["metadata"]["labels"]},
        "spec": {"containers": [{"name": "x", "image": "x"}]},
    }
    job.api.kubectl("create", "-n", job.namespace, "-f", "-", stdin=stranger)
    right = job.agent("tiny-0-0")
    config = right.config
    audience = f"deepseekjob/{config.namespace}/{config.job}/{config.job_uid}"
    impostor = job.agent("tiny-0-0")
    impostor.token = job.kubectl(
        "create",
        "token",
        "default",
        f"--audience={audience}",
        "--bound-object-kind=Pod",
        "--bound-object-name=stranger",
    ).strip()
    for agent, code in ((other_audience, "401"), (forged, "401"), (impostor, "403")):
        agent.start()
        await eventually(f"refused with {code}", lambda agent=agent: agent.refusals)  # type: ignore[misc]
        assert set(agent.refusals) == {code} and not agent.told
        await agent.stop()
    right.start()
    await eventually("the right one is heard", lambda: right.told)
    await right.stop()
    assert operator.log.count("refused") == 2, "once per peer and reason: two of them come from one address"
    assert forged.token not in operator.log


class TestLease:
    async def test_a_second_release_is_refused_and_named(
        self, operator: OperatorProcess, job: LiveJob, account: Any, tmp_path: Any
    ) -> None:
        await operator.start()
        await job.runs()
        second_place = {"CIUIC_RELEASE_NAMESPACE": "elsewhere", "CIUIC_POD_UID": "another"}
        with operator_process(account, tmp_path / "second", **second_place) as second:
            second.launch()
            assert await second.ended() == 3
            assert f"release {RELEASE_NAMESPACE}/deepseekjob runs in this cluster already" in second.log
        assert job.status()["attempt"] == 1 and job.states() == [AgentState.RUNNING] * 2
        await job.stop_agents()

    async def test_a_successor_waits_and_takes_over(
        self, operator: OperatorProcess, account: Any, tmp_path: Any
    ) -> None:
        await operator.start()
        with operator_process(account, tmp_path / "second", CIUIC_POD_UID="another") as second:
            second.launch()
            await eventually("it waits", lambda: "waiting for the Lease" in second.log)
            assert second.fetch("/healthz")[0] == 200 and second.fetch("/readyz")[0] == 503
            assert await operator.stop() == 0
            await eventually("it takes over", lambda: second.fetch("/readyz")[0] == 200, seconds=LEASE_SECONDS)

    async def test_a_lost_lease_ends_the_process(self, operator: OperatorProcess, api: ApiServer) -> None:
        await operator.start()
        taken = {"spec": {"holderIdentity": "somebody/else/x/y"}}
        api.kubectl(
            "patch", "lease", "deepseekjob-operator", "-n", "kube-system", "--type=merge", "-p", json.dumps(taken)
        )
        assert await operator.ended() == 1
        assert "somebody/else/x/y" in operator.log and "lease has ended" in operator.log
        free = {"spec": {"holderIdentity": ""}}
        api.kubectl(
            "patch", "lease", "deepseekjob-operator", "-n", "kube-system", "--type=merge", "-p", json.dumps(free)
        )


async def test_the_authority_outlives_the_operator(operator: OperatorProcess, api: ApiServer) -> None:
    await operator.start()
    made = api.get("secret", "deepseekjob-hub-ca", "-n", RELEASE_NAMESPACE)
    assert "ownerReferences" not in made["metadata"]
    await operator.stop()
    await operator.start()
    assert api.get("secret", "deepseekjob-hub-ca", "-n", RELEASE_NAMESPACE) == made
