"""Who can be told in a chat: the chart's `alerts.receivers` without their Secrets. Pure; read by `settings` at the start."""

import enum
import json
import re
from dataclasses import dataclass
from typing import Any

from ciuic_api.alerting import RECEIVER_NAME_MAX

LANGUAGES = ("en", "zh")


class ReceiverType(enum.StrEnum):
    WECOM = "wecom"
    DINGTALK = "dingtalk"
    FEISHU = "feishu"
    SLACK = "slack"
    WEBHOOK = "webhook"
    ALERTMANAGER = "alertmanager"


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """By the name that jobs use. Its URL and key are files, read when something is sent."""

    name: str
    type: ReceiverType
    language: str = "en"


def receivers(text: str) -> tuple[Receiver, ...]:
    """From a JSON list of {name, type, language}. Raises ValueError with what is wrong."""
    entries = json.loads(text)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("it is no list of objects")
    found = tuple(_receiver(entry) for entry in entries)
    names = [receiver.name for receiver in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice} is there twice")
    return found


def _receiver(entry: dict[str, Any]) -> Receiver:
    name, kind, language = entry.get("name", ""), entry.get("type", ""), entry.get("language", "en")
    # The name is part of a path and of a metric's label.
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", str(name)) or len(name) > RECEIVER_NAME_MAX:
        raise ValueError(f"name {name!r} is not made of lower-case letters, digits and dashes")
    if kind not in list(ReceiverType):
        raise ValueError(f"type {kind!r} of {name} is none of {', '.join(ReceiverType)}")
    if language not in LANGUAGES:
        raise ValueError(f"language {language!r} of {name} is none of {', '.join(LANGUAGES)}")
    return Receiver(name=name, type=ReceiverType(kind), language=language)
