"""What each kind of receiver wants to be sent, and how it says that it took it. Pure; used by `delivery`."""

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from ...receivers import ReceiverType
from ..model import Message
from ..secrecy import Secrets
from . import alertmanager, dingtalk, feishu, slack, webhook, wecom
from .wire import Answer, Outgoing, Verdict


class Format(NamedTuple):
    compose: Callable[[Message, Secrets, datetime], Outgoing]
    judge: Callable[[Answer], Verdict]


FORMATS = {
    ReceiverType.WECOM: Format(wecom.compose, wecom.judge),
    ReceiverType.DINGTALK: Format(dingtalk.compose, dingtalk.judge),
    ReceiverType.FEISHU: Format(feishu.compose, feishu.judge),
    ReceiverType.SLACK: Format(slack.compose, slack.judge),
    ReceiverType.WEBHOOK: Format(webhook.compose, webhook.judge),
    ReceiverType.ALERTMANAGER: Format(alertmanager.compose, alertmanager.judge),
}
