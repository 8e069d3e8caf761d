"""`spec.alerts`: who is told of what. Receivers themselves are defined in the chart, never by a job."""

import enum
from typing import Annotated

from pydantic import Field

from .schema import Schema, cel, rules

RECEIVER_NAME_MAX = 40


class AlertKind(enum.StrEnum):
    RESTARTING = "Restarting"
    """Something failed and the job restarts."""
    RECOVERED = "Recovered"
    """All ranks train again after a restart."""
    NO_CHECKPOINT_YET = "NoCheckpointYet"
    """A failure came before the first checkpoint: the job starts at step 0 again."""
    WAITING = "Waiting"
    """The job has waited for a minute for something that somebody has to change."""
    CHECKPOINT_STALE = "CheckpointStale"
    """Uploads of checkpoints fail, or succeed again."""
    STALLED = "Stalled"
    """Steps have stopped moving, or move again."""
    FAILED = "Failed"
    """The job has failed for good."""
    COMPLETE = "Complete"


class AlertRoute(Schema):
    """One receiver, and what it is told of."""

    receiver: Annotated[
        str,
        Field(
            max_length=RECEIVER_NAME_MAX,
            json_schema_extra=rules(
                cel(
                    "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
                    "alerts[].receiver may hold lower-case letters, digits and dashes; name a receiver of the chart's"
                    " alerts.receivers, for example oncall",
                )
            ),
        ),
    ]
    """Name of a receiver in the chart's `alerts.receivers`. One that is not there is said in the condition
    `UnknownReceiver`."""
    when: Annotated[tuple[AlertKind, ...] | None, Field(min_length=1, max_length=len(AlertKind))] = None
    """What it is told of; absent: everything. (Not `on`, which YAML 1.1, and so kubectl, reads as `true`.)"""

    def wants(self, kind: AlertKind) -> bool:
        return self.when is None or kind in self.when
