"""Liveness, readiness and the metrics' names."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest

import builders
from ciuic_api.jobstatus import JobStatus, State
from ciuic_operator.metrics import Metrics
from ciuic_operator.probes import SILENT_SECONDS, Probes, progress


@pytest.fixture
async def probes() -> AsyncIterator[tuple[Probes, str]]:
    one = Probes(Metrics())
    port = await one.start(0, "127.0.0.1")
    yield one, f"http://127.0.0.1:{port}"
    await one.stop()


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_waiting_for_the_lease_is_alive_but_not_ready(probes: tuple[Probes, str]) -> None:
    one, url = probes
    assert (await get(f"{url}/healthz"))[0] == 200
    assert (await get(f"{url}/readyz"))[0] == 503
    one.ready(True)
    assert (await get(f"{url}/readyz"))[0] == 200


async def test_a_watch_without_progress_is_dead(probes: tuple[Probes, str]) -> None:
    one, url = probes
    age = [SILENT_SECONDS]
    one.watch_over({"watch of pods": progress(lambda: age[0]), "lease": lambda: ""})
    assert await get(f"{url}/healthz") == (200, "ok")
    age[0] += 1
    assert await get(f"{url}/healthz") == (503, "watch of pods: no progress for 301 s")
    one.watch_over({"lease": lambda: "not held"})
    assert await get(f"{url}/healthz") == (503, "lease: not held")


async def test_metrics_are_served(probes: tuple[Probes, str]) -> None:
    _, url = probes
    status, text = await get(f"{url}/metrics")
    assert status == 200 and "deepseekjob_status_writes_total 0.0" in text


def test_the_numbers_are_those_that_were_told() -> None:
    metrics = Metrics()
    running = replace(
        builders.job(), status=JobStatus(state=State.RUNNING, attempt=3, highest_step=40, tokens_per_second=9)
    )
    pending = replace(builders.job(), name="other")
    metrics.read_from(jobs=lambda: [running, pending], agents=lambda: 2, ages={"pods": lambda: 1.5})
    metrics.decided("Training")
    metrics.failed(ValueError())
    metrics.refused("garbage")
    metrics.receiver("oncall")
    metrics.alerts_sent("oncall", 3)
    metrics.alerts_dropped("oncall", 2)
    metrics.alert_failed("oncall")
    text = metrics.text().decode()
    lines = set(text.splitlines())
    assert {
        'deepseekjob_jobs{state="Running"} 1.0',
        'deepseekjob_jobs{state="Pending"} 1.0',
        'deepseekjob_jobs{state="Failed"} 0.0',
        'deepseekjob_job_step{name="tiny",namespace="team"} 40.0',
        'deepseekjob_job_attempt{name="tiny",namespace="team"} 3.0',
        'deepseekjob_job_tokens_per_second{name="tiny",namespace="team"} 9.0',
        "deepseekjob_agents_connected 2.0",
        'deepseekjob_watch_age_seconds{watch="pods"} 1.5',
        'deepseekjob_hub_refusals_total{reason="garbage"} 1.0',
        'deepseekjob_alerts_total{outcome="sent",receiver="oncall"} 3.0',
        'deepseekjob_alerts_total{outcome="dropped",receiver="oncall"} 2.0',
        'deepseekjob_alerts_total{outcome="failed",receiver="oncall"} 1.0',
    } <= lines
    assert not re.search(r'tokens_per_second\{name="other"', text), "unknown is not zero"
