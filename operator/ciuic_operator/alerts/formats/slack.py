"""A Slack incoming webhook: blocks of mrkdwn, and a text for notifications. Pure."""

from datetime import datetime
from typing import Any

from ..model import Message, Severity
from ..secrecy import Secrets
from ..words import Told
from .layout import Content, fitted, one_line, rows
from .wire import Answer, Outgoing, Verdict, as_json, judge_status

SECTION_CHARACTERS = 3000
SECTIONS = 45
"""A message may have 50 blocks."""
SIGNS = {
    Severity.CRITICAL: ":red_circle:",
    Severity.WARNING: ":large_orange_circle:",
    Severity.INFO: ":large_green_circle:",
}


def compose(message: Message, secrets: Secrets, now: datetime) -> Outgoing:
    content = fitted(message, _size, SECTION_CHARACTERS)
    text = escaped(content.title)
    return Outgoing(url=secrets.url, body=as_json({"text": text, "blocks": blocks(content)}))


def _size(content: Content) -> int:
    """The longest section; one more than allowed when there are too many of them."""
    found = blocks(content)
    longest = max((len(block["text"]["text"]) for block in found), default=0)
    return longest if len(found) <= SECTIONS else SECTION_CHARACTERS + 1


def blocks(content: Content) -> list[dict[str, Any]]:
    sections = [_section(one, content.then) for one in content.told]
    sections += [f"_{escaped(remark)}_" for remark in content.remarks]
    return [{"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}} for text in sections]


def _section(one: Told, then: str) -> str:
    lines = [f"{SIGNS[one.severity]} *{escaped(one.headline)}*"]
    lines += [f"*{label}*: {text}" for label, text in rows(one, then, escaped, _code)]
    return "\n".join(lines)


def _code(command: str) -> str:
    return f"`{escaped(command)}`"


def escaped(text: str) -> str:
    """Slack's three entities: with them no <!channel>, <@user> or link comes out of it. A backtick would end a code."""
    return one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "ˋ")


def judge(answer: Answer) -> Verdict:
    return judge_status(answer)
