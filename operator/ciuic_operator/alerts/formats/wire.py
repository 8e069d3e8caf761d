"""One HTTP exchange with a receiver: the request, the answer, and what the answer means. Pure; used by all formats."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

QUOTED = 200
"""Characters of an answer that an error repeats."""


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    url: str = field(repr=False)
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    body: str
    retry_after_seconds: float = 0.0


class Outcome(Enum):
    SENT = "sent"
    LATER = "later"
    REFUSED = "refused"


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    why: str = ""


SENT = Verdict(Outcome.SENT)


def as_json(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def judge_status(answer: Answer) -> Verdict:
    """By the HTTP status alone."""
    if 200 <= answer.status < 300:
        return SENT
    why = f"HTTP {answer.status}: {' '.join(answer.body.split())[:QUOTED]}".rstrip(": ")
    return Verdict(Outcome.LATER if answer.status in (408, 429) or answer.status >= 500 else Outcome.REFUSED, why)


def judge_code(answer: Answer, code_names: tuple[str, ...], try_again: frozenset[int]) -> Verdict:
    """Chat robots answer 200 whatever happened: a number in the body says what, and 0 is well."""
    by_status = judge_status(answer)
    try:
        body = json.loads(answer.body)
    except ValueError:
        body = None
    code = next((body[name] for name in code_names if name in body), None) if isinstance(body, dict) else None
    if not isinstance(code, int):
        # A proxy's or login page's 200 is no proof of anything.
        no_word = Verdict(Outcome.LATER, f"no {code_names[0]} in the answer: {' '.join(answer.body.split())[:QUOTED]}")
        return by_status if by_status.outcome is not Outcome.SENT else no_word
    if code == 0:
        return by_status
    why = f"{code_names[0]} {code}: {' '.join(answer.body.split())[:QUOTED]}"
    return Verdict(Outcome.LATER if code in try_again else Outcome.REFUSED, why)
