"""A receiver's URL and key, and how they are kept out of logs, errors and metrics. Pure; used by `delivery`, `formats`."""

from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

MASK = "***"
SHORTEST = 5
"""Shorter parts of a URL (v1, send) are words, not secrets; masking them would make errors unreadable."""
HEADER_SAFE = range(0x21, 0x7F)


@dataclass(frozen=True)
class Secrets:
    url: str = field(repr=False)
    """Holds the robot's key in its path or query."""
    key: str = field(default="", repr=False)
    """Signs, where the receiver asks for it."""


def problem(secrets: Secrets) -> str:
    """A sentence about what makes them unusable, which does not quote them; empty when nothing does."""
    if not secrets.url:
        return "its Secret has no key `url`; add one with the whole URL of the robot"
    try:
        parts = urlsplit(secrets.url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        return "the `url` in its Secret is not a URL; copy it again from the chat"
    if parts.scheme not in ("http", "https") or not host or any(ord(c) not in HEADER_SAFE for c in secrets.url):
        return "the `url` in its Secret is not a URL; it begins with https:// and holds no spaces"
    return ""


def redacted(text: str, secrets: Secrets) -> str:
    """The text without anything of the URL but its host, and without the key: also percent-encoded, also in parts."""
    for part in sorted(_parts(secrets), key=len, reverse=True):
        text = text.replace(part, MASK)
    return text


def _parts(secrets: Secrets) -> set[str]:
    found = {secrets.url}
    try:
        url = urlsplit(secrets.url)
    except ValueError:
        url = urlsplit("")
    found |= {url.path, url.query, url.fragment, url.username or "", url.password or ""}
    found |= set(url.path.split("/"))
    found |= {value for pair in url.query.split("&") for value in pair.split("=", 1)[1:]}
    found |= {unquote(part) for part in found} | {quote(part, safe="") for part in found}
    long = {part for part in found if len(part) >= SHORTEST}
    return long | ({secrets.key} if secrets.key else set())
