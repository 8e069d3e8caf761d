"""Alertmanager's API v2. What ends there ends by an alert with the same labels and a past `endsAt`. Pure."""

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ciuic_api.alerting import AlertKind

from ..model import Alert, Message, Severity
from ..secrecy import Secrets
from ..words import told
from .layout import WORDS
from .wire import Answer, Outgoing, Verdict, as_json, judge_status

PATH = "/api/v2/alerts"
STANDS = {
    Severity.CRITICAL: timedelta(hours=24),
    Severity.WARNING: timedelta(hours=1),
    Severity.INFO: timedelta(minutes=5),
}
"""Nobody sends an alert again, so each says itself how long it stands unless something ends it."""
ENDS = {
    AlertKind.RECOVERED: (AlertKind.RESTARTING, AlertKind.WAITING),
    AlertKind.FAILED: (AlertKind.RESTARTING, AlertKind.WAITING, AlertKind.STALLED),
    AlertKind.COMPLETE: (AlertKind.RESTARTING, AlertKind.WAITING, AlertKind.STALLED, AlertKind.CHECKPOINT_STALE),
}
"""Kinds whose alerts end those of others, all of which are warnings."""


def compose(message: Message, secrets: Secrets, now: datetime) -> Outgoing:
    body = [alert for one in message.alerts for alert in _alerts(one, message.language)]
    return Outgoing(url=address(secrets.url), body=as_json(body))


def address(url: str) -> str:
    """The path of the API may be given or left out, below whatever prefix Alertmanager is served."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(PATH) else path + PATH))


def _alerts(alert: Alert, language: str) -> list[dict[str, Any]]:
    words = WORDS[language]
    text = told(alert, words)
    annotations = {"summary": text.headline, "description": alert.message, "reason": alert.reason}
    annotations |= {"details": "; ".join(f"{label}: {line}" for label, line in text.lines)}
    annotations |= {"next": text.next[2]} if text.next is not None else {}
    over = [_one(alert, kind, Severity.WARNING, annotations, timedelta()) for kind in ENDS.get(alert.kind, ())]
    if alert.over:
        return [_one(alert, alert.kind, Severity.WARNING, annotations, timedelta())]
    return [_one(alert, alert.kind, alert.severity, annotations, STANDS[alert.severity]), *over]


def _one(
    alert: Alert, kind: AlertKind, severity: Severity, annotations: dict[str, str], stands: timedelta
) -> dict[str, Any]:
    labels = {
        "alertname": f"DeepSeekJob{kind}",
        "namespace": alert.namespace,
        # `job` means the scrape job there.
        "deepseekjob": alert.job,
        "severity": str(severity),
    }
    stamp = "%Y-%m-%dT%H:%M:%SZ"
    return {
        "labels": labels,
        "annotations": {name: text for name, text in annotations.items() if text},
        "startsAt": alert.at.strftime(stamp),
        "endsAt": (alert.at + stands).strftime(stamp),
    }


def judge(answer: Answer) -> Verdict:
    return judge_status(answer)
