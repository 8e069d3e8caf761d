"""Joins the parts of one operator process. Called by `__main__` once the Lease is held; nothing runs yet afterwards."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from . import planner
from .alerts.delivery import Courier
from .alerts.desk import Desk
from .events import Events
from .execute import Execute
from .gate import Gate
from .hub import Hub
from .jobs import Jobs
from .kube import NODES, PODS, Kube
from .manifests import Platform, rank_pod
from .metrics import Metrics
from .model import Job, PodBody
from .objects import NodeRecord, PodRecord, node_record, pod_record
from .observe import Observe
from .obstacles import Obstacles
from .probes import SILENT_SECONDS, Check, progress
from .reconcile import Reconciler
from .settings import Settings
from .sweep import Sweep
from .watches import Store, Watch


@dataclass(frozen=True, kw_only=True)
class Parts:
    hub: Hub
    reconciler: Reconciler
    sweep: Sweep
    alerts: Desk
    pods: Watch[PodRecord]
    nodes: Watch[NodeRecord]
    checks: dict[str, Check]
    """What liveness asks."""


def now() -> datetime:
    return datetime.now(UTC)


def assemble(
    chosen: Settings, kube: Kube, held: Callable[[], bool], metrics: Metrics, cluster: str, authority_pem: bytes
) -> Parts:
    """The parts call one another in circles: what is named below its use here exists before the first call."""

    def pod_changed(before: PodRecord | None, after: PodRecord | None) -> None:
        record = after or before
        assert record is not None
        if after is None:
            hub.forget_pod(record.owner, record.uid)
        if before is None or after is None or before.pod != after.pod:
            reconciler.wake(record.owner)
            namesake = jobs.named(record.namespace, record.job)
            if namesake is not None and namesake != record.owner:
                # A job of the same name may wait for this pod to go.
                reconciler.wake(namesake)

    def node_changed(before: NodeRecord | None, after: NodeRecord | None) -> None:
        record = after or before
        assert record is not None
        if before is None or after is None or before.node != after.node:
            for pod in pods.by("node", record.node.name):
                reconciler.wake(pod.owner)

    def forget(job_uid: str) -> None:
        hub.forget_job(job_uid)
        execute.forget(job_uid)
        obstacles.forget(job_uid)
        alerts.forget(job_uid)

    def render(job: Job, slot: int, incarnation: int) -> PodBody:
        return rank_pod(job, slot, incarnation, platform)

    platform = Platform(hub_url=chosen.hub_url, hub_ca_pem=authority_pem.decode(), cluster=cluster)
    jobs = Jobs()
    obstacles = Obstacles()
    pods: Store[PodRecord] = Store(
        {
            "owner": lambda record: record.owner,
            "slot": lambda record: (record.owner, record.pod.slot),
            "job": lambda record: (record.namespace, record.job),
            "node": lambda record: record.pod.node,
        },
        pod_changed,
    )
    nodes: Store[NodeRecord] = Store({"name": lambda record: record.node.name}, node_changed)
    gate = Gate(
        review=kube.review_token,
        find=pods.get,
        siblings=lambda owner, slot: pods.by("slot", (owner, slot)),
        read=kube.get_pod,
    )
    hub = Hub(
        admit=gate.admit,
        check=gate.check,
        may_direct=held,
        changed=lambda uid: reconciler.wake(uid),
        refused=metrics.refused,
    )
    events = Events(kube.create_event, now)
    folder = Path(chosen.alerts_folder)
    couriers = [Courier(receiver, folder / receiver.name, metrics, now) for receiver in chosen.receivers]
    alerts = Desk(couriers, now)
    observe = Observe(
        jobs=jobs,
        pods=pods,
        nodes=nodes,
        agents=hub.agents,
        hub_seconds=hub.running_seconds,
        list_jobs=kube.list_job_keys,
        read_pod=kube.get_pod,
        pod_warnings=kube.pod_warnings,
        obstacles=obstacles,
        cluster=cluster,
        receivers=frozenset(receiver.name for receiver in chosen.receivers),
        hub=platform.hub,
        now=now,
    )
    execute = Execute(
        kube=kube,
        jobs=jobs,
        pods=pods,
        render=render,
        publish=hub.publish,
        obstacles=obstacles,
        events=events,
        metrics=metrics,
        persisted=alerts.show,
        exit_hook=chosen.exit_hook,
    )
    reconciler = Reconciler(
        jobs=jobs,
        observe=observe,
        plan=planner.plan,
        execute=execute,
        events=events,
        metrics=metrics,
        read_job=kube.get_job,
        forget=forget,
    )
    sweep = Sweep(
        jobs=jobs,
        list_jobs=kube.list_job_keys,
        read_job=kube.get_job,
        seen=functools.partial(reconciler.job_seen, from_stream=False),
        gone=reconciler.job_gone,
    )
    pod_watch = Watch(
        "pods", pods, pod_record, functools.partial(kube.pages, PODS), functools.partial(kube.watch, PODS)
    )
    node_watch = Watch(
        "nodes", nodes, node_record, functools.partial(kube.pages, NODES), functools.partial(kube.watch, NODES)
    )
    ages = {"pods": pod_watch.age, "nodes": node_watch.age, "jobs": sweep.age}
    metrics.read_from(jobs=lambda: (p.job for p in jobs.all()), agents=lambda: hub.connected, ages=ages)

    def loops() -> str:
        stuck = reconciler.stuck(SILENT_SECONDS)
        return f"stuck: {', '.join(stuck[:4])}" if stuck else ""

    return Parts(
        hub=hub,
        reconciler=reconciler,
        sweep=sweep,
        alerts=alerts,
        pods=pod_watch,
        nodes=node_watch,
        checks={
            **{f"watch of {name}": progress(age) for name, age in ages.items()},
            "loops": loops,
            "lease": lambda: "" if held() else "not held",
        },
    )
