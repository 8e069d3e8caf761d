"""Why a rank ended, in a form that can be compared and read. Pure; used by `runtime`."""

import re
import signal
from collections.abc import Sequence

from ciuic_api.protocol import AgentFailure

TAIL_LINES = 20
LINE_CHARACTERS = 400
CAUSE_CHARACTERS = 160

_ERROR = re.compile(r"^\s*[\w.]*(Error|Exception|Interrupt|Exit)\b")
_TRAINER = re.compile(r"^rank \d+: ")
"""How the trainer begins the one sentence that it ends with."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


def describe(rank: int, exit_code: int, lines: Sequence[str], seconds_ago: float, killed: str = "") -> AgentFailure:
    """`lines` are the rank's last log lines, oldest first; `killed` is why SIGKILL came, if that is known."""
    tail = tuple(line[:LINE_CHARACTERS] for line in lines[-TAIL_LINES:])
    cause = (killed if exit_code == -signal.SIGKILL else "") or last_error_line(tail)
    if not cause and exit_code > 0:
        # It ended by itself: what it said last is the best there is. One that was killed spoke of something else.
        cause = next((line.strip() for line in reversed(tail) if line.strip()), "")
    return AgentFailure(
        reason="RankExited",
        message=f"rank {rank} {_ended(exit_code)}" + (f": {cause}" if cause else ""),
        rank=rank,
        exit_code=exit_code,
        cause=cause,
        fingerprint=f"{exit_code}/{without_numbers(cause)}",
        tail=tail,
        at_seconds_ago=seconds_ago,
    )


def _ended(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def last_error_line(lines: Sequence[str]) -> str:
    """The last line that looks like an error's own sentence; a rank that was killed said nothing."""
    found = (line for line in reversed(lines) if _ERROR.match(line) or _TRAINER.match(line))
    return _TRAINER.sub("", next(found, "")).strip()


def without_numbers(text: str) -> str:
    """Steps, addresses and times differ from one failure to its repetition."""
    return _NUMBER.sub("#", text)[:CAUSE_CHARACTERS]
