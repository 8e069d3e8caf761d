"""A server of your own: each alert as data and as text, signed over time and body where there is a key. Pure."""

import hashlib
import hmac
from datetime import datetime
from typing import Any

from ..model import Alert, Message
from ..secrecy import Secrets
from ..words import Words, told
from .layout import WORDS
from .wire import Answer, Outgoing, Verdict, as_json, judge_status

VERSION = 1


def compose(message: Message, secrets: Secrets, now: datetime) -> Outgoing:
    words = WORDS[message.language]
    body = as_json(
        {
            "version": VERSION,
            "receiver": message.receiver,
            "dropped": message.dropped,
            "alerts": [_alert(alert, words) for alert in message.alerts],
        }
    )
    headers = {}
    if secrets.key:
        stamp = str(int(now.timestamp()))
        digest = hmac.digest(secrets.key.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hex()
        headers = {"X-DeepSeekJob-Timestamp": stamp, "X-DeepSeekJob-Signature": f"sha256={digest}"}
    return Outgoing(url=secrets.url, body=body, headers=headers)


def _alert(alert: Alert, words: Words) -> dict[str, Any]:
    """What is not known is left out."""
    text = told(alert, words)
    fields = {
        "kind": alert.kind,
        "over": alert.over,
        "severity": alert.severity,
        "namespace": alert.namespace,
        "job": alert.job,
        "jobUid": alert.job_uid,
        "at": alert.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "reason": alert.reason,
        "message": alert.message,
        "attempt": alert.attempt,
        "restarts": alert.restarts,
        "slot": alert.slot,
        "rank": alert.rank,
        "node": alert.node,
        "step": alert.step,
        "keptStep": alert.kept_step,
        "lostSteps": alert.lost_steps,
        "seconds": alert.seconds,
        "title": text.headline,
        "lines": [f"{label}: {line}" for label, line in text.lines],
        "next": text.next[2] if text.next is not None else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def judge(answer: Answer) -> Verdict:
    return judge_status(answer)
