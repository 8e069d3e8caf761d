"""What goes from `raising` to `formats`: one alert, and one message of several. Frozen values."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from ciuic_api.alerting import AlertKind


class Severity(enum.StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Alert:
    kind: AlertKind
    over: bool = False
    """What an earlier alert of this kind said has ended."""
    job_uid: str
    namespace: str
    job: str
    at: datetime
    reason: str
    message: str
    """Written by the operator, but holds words of users: exceptions, image names, a scheduler's or store's answer."""
    attempt: int
    restarts: int
    slot: int | None = None
    rank: int | None = None
    node: str | None = None
    evidence: str | None = None
    """Where stacks and last lines are kept."""
    step: int | None = None
    """Highest completed step; None where steps are not known."""
    kept_step: int | None = None
    """The step that the job goes on from, or could go on from."""
    seconds: int | None = None
    """How long the recovery, or the whole job, took."""

    @property
    def severity(self) -> Severity:
        if self.over or self.kind in (AlertKind.RECOVERED, AlertKind.COMPLETE):
            return Severity.INFO
        return Severity.CRITICAL if self.kind is AlertKind.FAILED else Severity.WARNING

    @property
    def lost_steps(self) -> int | None:
        if self.step is None or self.kept_step is None:
            return None
        return max(0, self.step - self.kept_step)


@dataclass(frozen=True, kw_only=True)
class Message:
    """What one receiver is told at once."""

    receiver: str
    language: str
    alerts: tuple[Alert, ...]
    dropped: int = 0
    """Alerts that this receiver should have had before and never gets."""

    @cached_property
    def gravest_first(self) -> Sequence[Alert]:
        order = list(Severity)
        return sorted(self.alerts, key=lambda alert: (order.index(alert.severity), alert.at))
