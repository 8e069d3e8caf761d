"""The robot of a WeCom group (企业微信群机器人): markdown of at most 4,096 bytes. Pure."""

from datetime import datetime

from ..model import Message, Severity
from ..secrecy import Secrets
from ..words import Told
from .layout import Content, as_code, fitted, plain, rows
from .wire import Answer, Outgoing, Verdict, as_json, judge_code

LIMIT_BYTES = 4096
COLOURS = {Severity.CRITICAL: "warning", Severity.WARNING: "warning", Severity.INFO: "info"}
"""The robot knows three: info is green, comment is grey, warning is orange."""
TRY_AGAIN = frozenset({-1, 45009, 45033})
"""System busy, more than 20 messages in a minute, too many at once."""


def compose(message: Message, secrets: Secrets, now: datetime) -> Outgoing:
    content = fitted(message, lambda content: len(markdown(content).encode()), LIMIT_BYTES)
    body = {"msgtype": "markdown", "markdown": {"content": markdown(content)}}
    return Outgoing(url=secrets.url, body=as_json(body))


def markdown(content: Content) -> str:
    parts = [_block(one, content.then) for one in content.told]
    parts += [f'<font color="comment">{plain(remark)}</font>' for remark in content.remarks]
    return "\n\n".join(parts)


def _block(one: Told, then: str) -> str:
    lines = [f'<font color="{COLOURS[one.severity]}">{plain(one.headline)}</font>']
    lines += [f"> {label}: {text}" for label, text in rows(one, then, plain, as_code)]
    return "\n".join(lines)


def judge(answer: Answer) -> Verdict:
    return judge_code(answer, ("errcode",), TRY_AGAIN)
