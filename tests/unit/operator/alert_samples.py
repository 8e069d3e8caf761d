"""Alerts for the tests of texts, formats and policy."""

from dataclasses import replace
from datetime import UTC, datetime

from ciuic_api.alerting import AlertKind
from ciuic_operator.alerts.model import Alert, Message

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
NASTY = 'boom <@all> <!channel> [click](http://evil) ![](http://evil/x.png) `rm` **b** & <at user_id="all"></at>\n# head\u202e'

RESTARTING = Alert(
    kind=AlertKind.RESTARTING,
    job_uid="u",
    namespace="team",
    job="tiny",
    at=NOW,
    reason="RankKilled",
    message=f"rank 3 (slot 1, pod tiny-1-1, node n1) was killed by SIGKILL after step 40: {NASTY}",
    attempt=3,
    restarts=2,
    slot=1,
    rank=3,
    node="n1",
    step=40,
    evidence="s3://ckpt/runs/team/tiny/evidence/2",
)
RECOVERED = replace(RESTARTING, kind=AlertKind.RECOVERED, message="", kept_step=36, seconds=4, evidence=None)
FAILED = replace(
    RESTARTING,
    kind=AlertKind.FAILED,
    reason="WatchdogOff",
    message="m",
    kept_step=36,
    seconds=8000,
    rank=None,
    node=None,
)
WAITING = replace(RESTARTING, kind=AlertKind.WAITING, reason="Unschedulable", message="0/3 nodes", slot=None, rank=None)
FRESH = replace(RESTARTING, kind=AlertKind.CHECKPOINT_STALE, over=True, reason="CheckpointStale", message="")


def message(*alerts: Alert, language: str = "en", dropped: int = 0) -> Message:
    return Message(receiver="oncall", language=language, alerts=alerts, dropped=dropped)
