"""The robot of a DingTalk group (钉钉群机器人): markdown, signed by query parameters where the robot asks for it. Pure."""

import base64
import hashlib
import hmac
from datetime import datetime
from urllib.parse import urlencode

from ..model import Message
from ..secrecy import Secrets
from ..words import Told
from .layout import Content, as_code, fitted, plain, rows
from .wire import Answer, Outgoing, Verdict, as_json, judge_code

LIMIT_BYTES = 18_000
"""The whole body may have 20,000."""
TRY_AGAIN = frozenset({-1, 130101, 410100})
"""System busy, and two numbers for: more than 20 messages in a minute."""


def compose(message: Message, secrets: Secrets, now: datetime) -> Outgoing:
    content = fitted(message, lambda content: len(markdown(content).encode()), LIMIT_BYTES)
    # Only numbers in `at` mention anybody; what stands in the text does not.
    body = {
        "msgtype": "markdown",
        "markdown": {"title": plain(content.title), "text": markdown(content)},
        "at": {"isAtAll": False},
    }
    return Outgoing(url=signed(secrets, now), body=as_json(body))


def signed(secrets: Secrets, now: datetime) -> str:
    if not secrets.key:
        return secrets.url
    stamp = str(int(now.timestamp() * 1000))
    digest = hmac.digest(secrets.key.encode(), f"{stamp}\n{secrets.key}".encode(), hashlib.sha256)
    query = urlencode({"timestamp": stamp, "sign": base64.b64encode(digest).decode()})
    return f"{secrets.url}{'&' if '?' in secrets.url else '?'}{query}"


def markdown(content: Content) -> str:
    parts = [_block(one, content.then) for one in content.told]
    parts += [plain(remark) for remark in content.remarks]
    return "\n\n".join(parts)


def _block(one: Told, then: str) -> str:
    lines = [f"- **{label}**: {text}" for label, text in rows(one, then, plain, as_code)]
    return "\n\n".join([f"#### {plain(one.headline)}", "\n".join(lines)]).rstrip()


def judge(answer: Answer) -> Verdict:
    return judge_code(answer, ("errcode",), TRY_AGAIN)
