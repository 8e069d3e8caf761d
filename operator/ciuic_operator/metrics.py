"""What Prometheus sees. One object, built by `__main__`; docs/metrics.md lists the names, a test holds both together.

Per-job series carry namespace and name and come from the jobs as they are known when they are asked for, so that a
deleted job leaves nothing behind.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ciuic_api.accounts import STAGES
from ciuic_api.jobstatus import JobStatus, State

from .model import Job

RECOVERY_BUCKETS_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)
ALL_STAGES = "all"
JOB = ("namespace", "name")


class _JobSeries(Collector):
    def __init__(self, jobs: Callable[[], Iterable[Job]]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterable[Metric]:
        jobs = list(self._jobs())
        states = GaugeMetricFamily("deepseekjob_jobs", "Jobs in each state.", labels=["state"])
        tally = Tally(job.status.state for job in jobs)
        for state in State:
            states.add_metric([state], tally[state])
        yield states
        values: tuple[tuple[str, str, Callable[[JobStatus], float | None]], ...] = (
            ("step", "Highest completed step on the lineage.", lambda status: status.highest_step),
            ("attempt", "Life of the whole process group that is directed now.", lambda status: status.attempt),
            ("tokens_per_second", "Tokens a second of the whole job.", lambda status: status.tokens_per_second),
            ("ettr_ratio", "Share of the job's time that its model kept.", lambda status: _ratio(status.ettr)),
            (
                "ettr_last_hour_ratio",
                "The same share of the job's last hour.",
                lambda status: _ratio(status.ettr_last_hour),
            ),
        )
        for name, meaning, value in values:
            family = GaugeMetricFamily(f"deepseekjob_job_{name}", meaning, labels=JOB)
            for job in jobs:
                number = value(job.status)
                if number is not None:
                    family.add_metric([job.namespace, job.name], number)
            yield family
        lost = CounterMetricFamily(
            "deepseekjob_job_lost_steps", "Steps that were completed and had to be done again.", labels=JOB
        )
        restarts = CounterMetricFamily(
            "deepseekjob_job_restarts", "Restarts of a job, by class.", labels=(*JOB, "class")
        )
        for job in jobs:
            lost.add_metric([job.namespace, job.name], job.status.lost_steps)
            counts = job.status.restarts
            for kind, count in (("software", counts.software), ("disruption", counts.disruption)):
                restarts.add_metric([job.namespace, job.name, kind], count)
        yield from (lost, restarts)

    def describe(self) -> Iterable[Metric]:
        return []


def _ratio(text: str | None) -> float | None:
    return float(text) if text is not None else None


class Metrics:
    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        into = self.registry = CollectorRegistry()
        self._reconciles = Counter("deepseekjob_reconciles", "Decisions, by reason.", ["reason"], registry=into)
        self._errors = Counter(
            "deepseekjob_reconcile_errors", "Passes that failed, by kind of error.", ["kind"], registry=into
        )
        self._attempts = Counter("deepseekjob_attempts_started", "Attempts numbered and written down.", registry=into)
        self._restarts = Counter("deepseekjob_restarts", "Restarts, by class.", ["class"], registry=into)
        self._writes = Counter("deepseekjob_status_writes", "Status writes that succeeded.", registry=into)
        self._conflicts = Counter(
            "deepseekjob_status_conflicts", "Plans dropped because the job had changed.", registry=into
        )
        self._refusals = Counter(
            "deepseekjob_hub_refusals", "Connections and messages refused.", ["reason"], registry=into
        )
        self._agents = Gauge("deepseekjob_agents_connected", "Agents connected to the hub.", registry=into)
        self._ages = Gauge(
            "deepseekjob_watch_age_seconds", "Seconds since a watch last made progress.", ["watch"], registry=into
        )
        self.loop_lag = Gauge("deepseekjob_event_loop_lag_seconds", "How late a timer fired last.", registry=into)
        self._alerts = Counter(
            "deepseekjob_alerts",
            "Alerts by receiver: sent, dropped for good, or failed (once for each try of a message).",
            ["receiver", "outcome"],
            registry=into,
        )
        self._recoveries = Histogram(
            "deepseekjob_recovery_seconds",
            "Recoveries that ended, each of their stages and all together.",
            ["stage"],
            buckets=RECOVERY_BUCKETS_SECONDS,
            registry=into,
        )
        for kind in ("software", "disruption"):
            self._restarts.labels(kind)
        for stage in (*STAGES, ALL_STAGES):
            self._recoveries.labels(stage)

    def read_from(
        self, *, jobs: Callable[[], Iterable[Job]], agents: Callable[[], int], ages: Mapping[str, Callable[[], float]]
    ) -> None:
        """What is looked up when the metrics are asked for."""
        self.registry.register(_JobSeries(jobs))
        self._agents.set_function(agents)
        for name, age in ages.items():
            self._ages.labels(name).set_function(age)

    def decided(self, reason: str) -> None:
        self._reconciles.labels(reason).inc()

    def failed(self, error: Exception) -> None:
        self._errors.labels(type(error).__name__).inc()

    def conflict(self) -> None:
        self._conflicts.inc()

    def refused(self, code: str) -> None:
        self._refusals.labels(code).inc()

    def receiver(self, name: str) -> None:
        """Its counters are there before the first alert: an increase from nothing is none to Prometheus."""
        for outcome in ("sent", "failed", "dropped"):
            self._alerts.labels(name, outcome)

    def alerts_sent(self, receiver: str, count: int) -> None:
        self._alerts.labels(receiver, "sent").inc(count)

    def alerts_dropped(self, receiver: str, count: int) -> None:
        self._alerts.labels(receiver, "dropped").inc(count)

    def alert_failed(self, receiver: str) -> None:
        self._alerts.labels(receiver, "failed").inc()

    def status_written(self, before: JobStatus, after: JobStatus) -> None:
        self._writes.inc()
        self._attempts.inc(max(0, after.attempt - before.attempt) if before.attempt else int(after.attempt > 0))
        self._restarts.labels("software").inc(max(0, after.restarts.software - before.restarts.software))
        self._restarts.labels("disruption").inc(max(0, after.restarts.disruption - before.restarts.disruption))
        self._recovery(before, after)

    def _recovery(self, before: JobStatus, after: JobStatus) -> None:
        newest = after.ledger[-1] if after.ledger else None
        if newest is None or newest.stages is None or not newest.recovered:
            return
        if any(known.attempt == newest.attempt and known.recovered for known in before.ledger):
            return
        seconds = {name: (getattr(newest.stages, name) or 0) / 1000 for name in STAGES}
        for stage, time in {**seconds, ALL_STAGES: sum(seconds.values())}.items():
            self._recoveries.labels(stage).observe(time)

    def text(self) -> bytes:
        return generate_latest(self.registry)
