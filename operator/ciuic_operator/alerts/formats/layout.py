"""Which words of a message fit: whole texts where they do, shorter ones where they do not. Pure; used by the chat formats.

What is too long is shortened as plain text, before a format escapes it and adds its markup. So a cut never falls into a
character, an escape or a tag.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..chinese import CHINESE
from ..english import ENGLISH
from ..model import Message
from ..words import Told, Words, told

WORDS = {"en": ENGLISH, "zh": CHINESE}
IN_FULL = 5
"""Of more alerts than this only the headlines are told: nobody reads a wall of text in a chat."""
DETAILS_BYTES = (1200, 400, 120)
"""Tried one after the other."""


@dataclass(frozen=True, kw_only=True)
class Content:
    title: str
    told: tuple[Told, ...]
    remarks: tuple[str, ...] = ()
    """What the message leaves out."""
    then: str


def fitted(message: Message, size: Callable[[Content], int], limit: int) -> Content:
    """The most that `size` counts at most `limit` of."""
    words = WORDS[message.language]
    alerts = message.gravest_first
    everything = [told(alert, words) for alert in alerts]
    if len(alerts) <= IN_FULL:
        for limit_bytes in DETAILS_BYTES:
            content = _content(message, words, [_shorter(one, limit_bytes) for one in everything], len(alerts))
            if size(content) <= limit:
                return content
    heads = [one.brief() for one in everything]
    for count in range(len(heads), 0, -1):
        content = _content(message, words, heads[:count], count)
        if size(content) <= limit:
            return content
    return _content(message, words, [], 0)


def _content(message: Message, words: Words, shown: list[Told], count: int) -> Content:
    alerts = message.gravest_first
    left_out = Counter(str(alert.kind) for alert in alerts[count:])
    kinds = ", ".join(f"{number} {kind}" for kind, number in left_out.most_common())
    remarks = [words.more.format(count=len(alerts) - count, kinds=kinds)] if left_out else []
    if message.dropped:
        remarks.append(words.dropped.format(count=message.dropped))
    first = told(alerts[0], words).headline
    title = first if len(alerts) == 1 else f"{words.many.format(count=len(alerts))}: {first}"
    return Content(title=title, told=tuple(shown), remarks=tuple(remarks), then=words.then)


def rows(one: Told, then: str, escaped: Callable[[str], str], code: Callable[[str], str]) -> list[tuple[str, str]]:
    """Label and text of each line below the headline, the text in a format's own escapes."""
    found = [(label, escaped(text)) for label, text in one.lines]
    if one.details is not None:
        label, text = one.details
        found.append((label, escaped(text)))
    if one.next is not None:
        label, first, command = one.next
        found.append((label, f"{escaped(first)}{then if first else ''}{code(command)}"))
    return found


def _shorter(one: Told, limit_bytes: int) -> Told:
    if one.details is None:
        return one
    label, text = one.details
    return replace(one, details=(label, shortened(text, limit_bytes)))


def shortened(text: str, limit_bytes: int) -> str:
    """At most so many bytes of UTF-8, never half a character."""
    data = text.encode()
    if len(data) <= limit_bytes:
        return text
    return data[: limit_bytes - len("…".encode())].decode(errors="ignore").rstrip() + "…"


def one_line(text: str) -> str:
    """Without line breaks, control and direction marks: what a user's program wrote must not look like ours."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


_LOOKALIKES = str.maketrans({"<": "＜", ">": "＞", "[": "［", "]": "］", "`": "ˋ", "*": "＊"})
"""WeCom's and DingTalk's markdown have no escape character, so signs that mean something become ones that look like it."""


def plain(text: str) -> str:
    """For markdown without escapes, behind a label: no mention (<@all>), link, picture or font comes out of it."""
    return one_line(text).translate(_LOOKALIKES)


def as_code(command: str) -> str:
    """A command between backticks stays as it is to be typed; it is made of names that Kubernetes has checked."""
    return f"`{one_line(command).replace('`', '')}`".replace("<@", "< @")
