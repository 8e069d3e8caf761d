"""The custom robot of a Feishu or Lark group (飞书): a post of plain text tags, signed in the body. Pure.

A post takes text as it is; only the mention tag of other message kinds is made harmless, in case a client reads it.
"""

import base64
import hashlib
import hmac
from datetime import datetime
from typing import Any

from ..model import Message
from ..secrecy import Secrets
from .layout import Content, fitted, one_line, rows
from .wire import Answer, Outgoing, Verdict, as_json, judge_code

LIMIT_BYTES = 18_000
"""The whole body may have 20 KB."""
TRY_AGAIN = frozenset({2200, 9499, 11232})
"""Internal error, too many requests, frequency limit (100 a minute and 5 a second; worse at full and half hours)."""
LANGUAGES = {"en": "en_us", "zh": "zh_cn"}


def compose(message: Message, secrets: Secrets, now: datetime) -> Outgoing:
    content = fitted(message, lambda content: len(as_json(post(content))), LIMIT_BYTES)
    body: dict[str, Any] = {"msg_type": "post", "content": {"post": {LANGUAGES[message.language]: post(content)}}}
    if secrets.key:
        stamp = str(int(now.timestamp()))
        # Their order, not the usual one: the key signs nothing.
        digest = hmac.digest(f"{stamp}\n{secrets.key}".encode(), b"", hashlib.sha256)
        body = {"timestamp": stamp, "sign": base64.b64encode(digest).decode(), **body}
    return Outgoing(url=secrets.url, body=as_json(body))


def post(content: Content) -> dict[str, Any]:
    lines: list[str] = []
    alone = len(content.told) == 1
    for one in content.told:
        lines += [] if alone else [one.headline]
        lines += [f"{label}: {text}" for label, text in rows(one, content.then, str, str)]
    lines += content.remarks
    return {
        "title": literal(content.title),
        "content": [[{"tag": "text", "text": literal(line)}] for line in lines],
    }


def literal(text: str) -> str:
    return one_line(text).replace("<at", "＜at")


def judge(answer: Answer) -> Verdict:
    return judge_code(answer, ("code", "StatusCode"), TRY_AGAIN)
