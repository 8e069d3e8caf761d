"""Why a rank ended, in a form that can be compared and read. Pure; used by `runtime`."""

import re

from ciuic_api.protocol import AgentFailure

TAIL_LINES = 20
LINE_CHARACTERS = 400


def describe(rank: int, exit_code: int, lines: list[str], seconds_ago: float) -> AgentFailure:
    """`lines` are the rank's last log lines, oldest first."""
    tail = tuple(line[:LINE_CHARACTERS] for line in lines[-TAIL_LINES:])
    cause = last_error_line(tail)
    return AgentFailure(
        reason="RankExited",
        message=f"rank {rank} ended with exit code {exit_code}" + (f": {cause}" if cause else ""),
        rank=rank,
        exit_code=exit_code,
        fingerprint=f"{exit_code}/{without_numbers(cause)}",
        tail=tail,
        at_seconds_ago=seconds_ago,
    )


def last_error_line(lines: tuple[str, ...]) -> str:
    """The last line that looks like an error's own sentence; a rank that was killed said nothing."""
    for line in reversed(lines):
        if re.match(r"^\s*[\w.]*(Error|Exception|Interrupt|Exit)\b", line):
            return line.strip()
    return ""


def without_numbers(text: str) -> str:
    """Steps, addresses and times differ from one failure to its repetition."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)[:160]
