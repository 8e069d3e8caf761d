"""docs/metrics.md lists exactly what is exported. Dashboards and alert rules name it: a change here breaks somebody's."""

from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import builders
from ciuic_api.accounts import STAGES, Stages
from ciuic_api.jobstatus import JobStatus, LedgerEntry, RestartCounts, State
from ciuic_operator.metrics import Metrics

DOCS = Path(__file__).resolve().parents[2] / "docs/metrics.md"


def exported() -> Metrics:
    """With one sample at least of everything."""
    metrics = Metrics()
    running = JobStatus(
        state=State.RUNNING,
        attempt=3,
        highest_step=40,
        tokens_per_second=9,
        ettr="0.973",
        ettr_last_hour="0.9",
        lost_steps=7,
        restarts=RestartCounts(total=3, software=2, disruption=1),
    )
    jobs = [replace(builders.job(), status=running), replace(builders.job(), name="other")]
    metrics.read_from(jobs=lambda: jobs, agents=lambda: 2, ages={"pods": lambda: 1.5})
    metrics.decided("Training")
    metrics.failed(ValueError())
    metrics.refused("garbage")
    metrics.receiver("oncall")
    return metrics


def rows() -> dict[str, tuple[str, frozenset[str], str]]:
    """Type, labels and meaning by name."""
    found = {}
    for line in DOCS.read_text().splitlines():
        if line.startswith("| `deepseekjob_"):
            name, kind, labels, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            found[name.strip("`")] = (kind, frozenset(labels.replace("`", "").replace(",", "").split()), meaning)
    return found


def test_the_page_and_the_code_say_the_same() -> None:
    families = {}
    for family in text_string_to_metric_families(exported().text().decode()):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        families[name] = (family.type, frozenset(labels), family.documentation)
    assert families == rows()


def test_the_page_names_every_stage() -> None:
    text = DOCS.read_text()
    assert [name for name in STAGES if f"| `{name}` |" not in text] == []


def lines(metrics: Metrics) -> set[str]:
    return set(metrics.text().decode().splitlines())


def test_a_job_s_accounts_are_its_status() -> None:
    found = lines(exported())
    of = 'name="tiny",namespace="team"'
    assert {
        f"deepseekjob_job_ettr_ratio{{{of}}} 0.973",
        f"deepseekjob_job_ettr_last_hour_ratio{{{of}}} 0.9",
        f"deepseekjob_job_lost_steps_total{{{of}}} 7.0",
        f'deepseekjob_job_restarts_total{{class="software",{of}}} 2.0',
        f'deepseekjob_job_restarts_total{{class="disruption",{of}}} 1.0',
    } <= found
    assert not any(line.startswith('deepseekjob_job_ettr_ratio{name="other"') for line in found), "unknown is not zero"


def test_a_recovery_is_counted_once_when_it_is_over() -> None:
    metrics = Metrics()
    entry = LedgerEntry(at="", reason="RankKilled", fingerprint="k", counted=True, step=9, attempt=1)
    under_way = JobStatus(ledger=(entry.model_copy(update={"stages": Stages(detect=500)}),))
    stages = Stages(detect=500, decide=0, kill=1000, pods=0, restore=250, start=4000, first_step=2000)
    over = JobStatus(ledger=(entry.model_copy(update={"stages": stages, "recovered": True}),))
    metrics.status_written(JobStatus(), under_way)
    assert 'deepseekjob_recovery_seconds_count{stage="all"} 0.0' in lines(metrics)
    metrics.status_written(under_way, over)
    metrics.status_written(over, over.model_copy(update={"step": 10}))
    assert {
        'deepseekjob_recovery_seconds_count{stage="all"} 1.0',
        'deepseekjob_recovery_seconds_sum{stage="all"} 7.75',
        'deepseekjob_recovery_seconds_sum{stage="start"} 4.0',
    } <= lines(metrics)
