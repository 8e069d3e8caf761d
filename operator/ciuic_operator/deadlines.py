"""How long a rank may stay in one place, by phase: given, learned from this job, or a careful default. Pure.

An evaluation, a checkpoint, a compilation or a wait for data each have a limit of their own, so that none of them is
ever taken for a hang. Called by the planner.
"""

import hashlib
from collections.abc import Iterable, Mapping

from ciuic_api.job import JobSpec
from ciuic_api.jobstatus import Pace
from ciuic_api.protocol import Report
from ciuic_api.watching import Deadlines

LEAST_SECONDS = 30.0
FACTOR = 4.0
SAMPLES = 20
"""Movements in a phase from which on its 99th percentile says something."""
GROWTH = 1.1
"""A pace is written down again when it has grown by this much: the status does not follow every tenth of a second."""
DEFAULTS: Mapping[str, float] = {
    "init": 600.0,
    "compile": 1800.0,
    "restore": 1800.0,
    "step": 600.0,
    "eval": 1800.0,
    "checkpoint": 1800.0,
    "data": 1800.0,
    "exit": 600.0,
}


def limit_seconds(phase: str, paces: Iterable[Pace], given: Deadlines) -> float:
    chosen = given.of(phase)
    if chosen is not None:
        return float(chosen)
    for pace in paces:
        if pace.phase == phase:
            return max(LEAST_SECONDS, FACTOR * pace.p99_milliseconds / 1000)
    return DEFAULTS.get(phase, max(DEFAULTS.values()))


def learned(known: tuple[Pace, ...], reports: Iterable[Report]) -> tuple[Pace, ...]:
    """The slowest slot counts, and the slowest that was ever seen: a limit only grows while the job stays the same."""
    counts: dict[str, int] = {}
    slowest: dict[str, float] = {}
    for report in reports:
        for told in report.phase_times:
            counts[told.phase] = counts.get(told.phase, 0) + told.count
            slowest[told.phase] = max(slowest.get(told.phase, 0.0), told.p99_seconds)
    paces = {pace.phase: pace.p99_milliseconds for pace in known}
    for phase, count in counts.items():
        now = round(slowest[phase] * 1000)
        if count >= SAMPLES and now > GROWTH * paces.get(phase, -1.0):
            paces[phase] = now
    return tuple(Pace(phase=phase, p99_milliseconds=paces[phase]) for phase in sorted(paces))


def pace_key(spec: JobSpec) -> str:
    """Changes with what changes how long a step takes; what was learned before says nothing then."""
    text = spec.model_dump_json(include={"nodes", "ranks_per_node", "accelerator", "image", "training", "command"})
    return hashlib.sha256(text.encode()).hexdigest()[:16]
