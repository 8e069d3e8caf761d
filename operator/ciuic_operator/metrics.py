"""What Prometheus sees. One object, built by `__main__`; the names are documented and frozen by a test.

Per-job series carry namespace and name and come from the jobs as they are known when they are asked for, so that a
deleted job leaves nothing behind.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ciuic_api.jobstatus import JobStatus, State

from .model import Job


class _JobSeries(Collector):
    def __init__(self, jobs: Callable[[], Iterable[Job]]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterable[GaugeMetricFamily]:
        jobs = list(self._jobs())
        states = GaugeMetricFamily("deepseekjob_jobs", "Jobs in each state.", labels=["state"])
        tally = Tally(job.status.state for job in jobs)
        for state in State:
            states.add_metric([state], tally[state])
        yield states
        values: tuple[tuple[str, str, Callable[[JobStatus], int | None]], ...] = (
            ("step", "Highest completed step on the lineage.", lambda status: status.highest_step),
            ("attempt", "Life of the whole process group that is directed now.", lambda status: status.attempt),
            ("tokens_per_second", "Tokens a second of the whole job.", lambda status: status.tokens_per_second),
        )
        for name, meaning, value in values:
            family = GaugeMetricFamily(f"deepseekjob_job_{name}", meaning, labels=["namespace", "name"])
            for job in jobs:
                number = value(job.status)
                if number is not None:
                    family.add_metric([job.namespace, job.name], number)
            yield family

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return []


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
        for kind in ("software", "disruption"):
            self._restarts.labels(kind)

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

    def text(self) -> bytes:
        return generate_latest(self.registry)
