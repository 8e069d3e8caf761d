"""`spec.watchdog`: what is restarted, when a standstill is a hang, and how often. Part of `job`."""

import enum
from typing import Annotated, Any

from .schema import Schema, bounded


class Restarts(Schema):
    """Budget of restarts."""

    max: Annotated[int, bounded("watchdog.restarts.max", 0, 1000, "10 is common")] = 10
    """Restarts after software failures within windowSeconds; one more fails the job. Disruptions are not counted."""
    window_seconds: Annotated[int, bounded("watchdog.restarts.windowSeconds", 60, 10**8, "3600 is an hour")] = 3600
    """Over how long restarts are counted."""


class WatchdogMode(enum.StrEnum):
    ACT = "Act"
    NOTIFY = "Notify"


def _deadline(name: str) -> Any:
    return bounded(f"watchdog.deadlines.{name}", 5, 10**7, "1800 is half an hour; remove it to have it learned")


class Deadlines(Schema):
    """Seconds that all ranks may stay in one place before that is a standstill. Absent: learned from the job, as four times
    what 99 of 100 movements took and at least 30 s; before 20 movements were seen, 10 minutes for init and step and 30
    minutes for the rest."""

    init: Annotated[int | None, _deadline("init")] = None
    """Process start, process group, engine."""
    compile: Annotated[int | None, _deadline("compile")] = None
    """The first step of an attempt."""
    restore: Annotated[int | None, _deadline("restore")] = None
    """Loading a checkpoint from the memory tier."""
    step: Annotated[int | None, _deadline("step")] = None
    """One micro-step."""
    eval: Annotated[int | None, _deadline("eval")] = None
    """One evaluation."""
    checkpoint: Annotated[int | None, _deadline("checkpoint")] = None
    """One copy into the memory tier."""
    data: Annotated[int | None, _deadline("data")] = None
    """Waiting for data."""

    def of(self, phase: str) -> int | None:
        chosen: int | None = getattr(self, phase, None)
        return chosen


class Watchdog(Schema):
    """Its presence, or the label ciuic.io/watchdog: "true", turns restarts on."""

    mode: WatchdogMode = WatchdogMode.ACT
    """`Act`: ranks that hang are restarted. `Notify`: that they stand still is said, with their stacks; nothing is done.
    What has ended is restarted in both."""
    deadlines: Deadlines = Deadlines()
    restarts: Restarts = Restarts()
