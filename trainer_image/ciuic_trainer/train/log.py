"""What a rank says: rank 0 one line per step to stdout, every rank JSON lines for programs. Used by loop, checkpoint.

Rank 0 writes its JSON lines to stdout too, unless CIUIC_JSON_LOG is 0 (by hand: only when it is 1). With
CIUIC_JSON_LOG_DIR every rank writes its own to a file in that folder, `rank-00000.jsonl`. Each line has `kind`, `time`
(Unix seconds), `attempt` and `rank`; the kinds are start, remark, restore, step, annealed, guard, guard-rate, eval, checkpoint,
checkpoint-skipped and end. A step has exactly one line of its kind per attempt. Losses are fp32 and written with 9 digits,
which is all of them: equal text means equal bits. What is not finite is a string, "nan" or "inf".
"""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from ciuic_trainer.shared.rank_env import ATTEMPT, RankEnv

JSON_LOG = "CIUIC_JSON_LOG"
JSON_LOG_DIR = "CIUIC_JSON_LOG_DIR"


class Log:
    def __init__(self, env: RankEnv, environ: Mapping[str, str], out: TextIO) -> None:
        self._identity = {"attempt": env.attempt, "rank": env.rank}
        self._human = out if env.rank == 0 else None
        self._streams: list[TextIO] = []
        by_agent = ATTEMPT in environ
        if env.rank == 0 and environ.get(JSON_LOG, "1" if by_agent else "0") == "1":
            self._streams.append(out)
        if folder := environ.get(JSON_LOG_DIR):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._streams.append((Path(folder) / f"rank-{env.rank:05d}.jsonl").open("a", encoding="utf-8"))

    def record(self, kind: str, **fields: Any) -> None:
        if not self._streams:
            return
        entry = {"kind": kind, "time": round(time.time(), 3), **self._identity, **fields}
        line = json.dumps({key: _finite(value) for key, value in entry.items()}) + "\n"
        for stream in self._streams:
            stream.write(line)
            stream.flush()

    def say(self, text: str) -> None:
        if self._human is not None:
            self._human.write(text + "\n")
            self._human.flush()


def exact(loss: float) -> str:
    """All digits of an fp32 number."""
    return f"{loss:.9g}"


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
