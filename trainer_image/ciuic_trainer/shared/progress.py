"""One record per rank in shared memory: where the rank is and when it last moved.

The trainer writes it, the agent reads it once a second. It lies in a mapped file, so a rank that holds the interpreter
lock, hangs in a collective or was killed still shows where it stopped. Two slots are written in turn, each with a
growing sequence and a checksum: a reader takes the newest whole one and never sees a torn record, also when the writer
was killed in the middle of a write.
"""

import enum
import math
import mmap
import os
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

FILE_BYTES = 4096
_SLOT_OFFSETS_BYTES = (0, 256)
_BODY = struct.Struct("<QQQQQIddddQ")
"""sequence, attempt, step, micro-step, pid, phase, moved at, loss, eval loss, tokens/s, metrics step"""
_CRC = struct.Struct("<I")


class Phase(enum.StrEnum):
    INIT = "init"
    COMPILE = "compile"
    RESTORE = "restore"
    STEP = "step"
    EVAL = "eval"
    CHECKPOINT = "checkpoint"
    DATA = "data"
    EXIT = "exit"


_PHASES = tuple(Phase)


@dataclass(frozen=True, kw_only=True)
class Progress:
    attempt: int
    phase: Phase = Phase.INIT
    step: int = 0
    """Completed optimizer steps."""
    micro_step: int = 0
    """Completed micro-steps within the current step."""
    pid: int = 0
    moved_at_seconds: float = 0.0
    """time.monotonic() of the last change; the same clock in all processes of a pod."""
    metrics_step: int = 0
    """The step that loss and tokens/s belong to."""
    loss: float | None = None
    eval_loss: float | None = None
    tokens_per_second: float | None = None


class ProgressWriter:
    """The trainer's side. Each call takes a few microseconds and never fails training once the file is open."""

    def __init__(self, path: Path, attempt: int, *, step: int = 0) -> None:
        self._map = _map(path, writable=True)
        self._sequence = max((s for s, _ in _slots(self._map)), default=0)
        self._now = Progress(attempt=attempt, step=step, pid=os.getpid())
        self._write(self._now)

    @property
    def current(self) -> Progress:
        return self._now

    def enter(self, phase: Phase) -> None:
        self._write(replace(self._now, phase=phase))

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        """`phase` for the length of the block, then what it was before."""
        before = self._now.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def restored(self, step: int) -> None:
        self._write(replace(self._now, step=step, micro_step=0))

    def micro_step(self, completed: int) -> None:
        self._write(replace(self._now, micro_step=completed))

    def step(self, completed: int, *, loss: float | None = None, tokens_per_second: float | None = None) -> None:
        """`completed` optimizer steps are done."""
        now = replace(self._now, step=completed, micro_step=0)
        if loss is not None or tokens_per_second is not None:
            now = replace(now, metrics_step=completed, loss=loss, tokens_per_second=tokens_per_second)
        self._write(now)

    def eval_loss(self, loss: float) -> None:
        self._write(replace(self._now, eval_loss=loss))

    def _write(self, progress: Progress) -> None:
        self._now = progress = replace(progress, moved_at_seconds=time.monotonic())
        self._sequence += 1
        body = _BODY.pack(
            self._sequence,
            progress.attempt,
            progress.step,
            progress.micro_step,
            progress.pid,
            _PHASES.index(progress.phase),
            progress.moved_at_seconds,
            _pack_optional(progress.loss),
            _pack_optional(progress.eval_loss),
            _pack_optional(progress.tokens_per_second),
            progress.metrics_step,
        )
        offset = _SLOT_OFFSETS_BYTES[self._sequence % 2]
        self._map[offset : offset + _BODY.size + _CRC.size] = body + _CRC.pack(zlib.crc32(body))


class ProgressReader:
    """The agent's side."""

    def __init__(self, path: Path) -> None:
        self._map = _map(path, writable=False)

    def read(self) -> Progress | None:
        """The newest whole record, or None while the rank has not written one."""
        for _ in range(8):  # both slots change under the reader only when it sleeps between the two copies
            slots = _slots(self._map)
            if slots:
                return max(slots, key=lambda slot: slot[0])[1]
            if not any(self._map[: _SLOT_OFFSETS_BYTES[1] + _BODY.size]):
                return None
        return None

    def close(self) -> None:
        self._map.close()


def create(path: Path) -> None:
    """An empty record, made by the agent before the rank starts. Whoever sees it sees it whole."""
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(bytes(FILE_BYTES))
    draft.rename(path)


def _map(path: Path, *, writable: bool) -> mmap.mmap:
    with path.open("r+b" if writable else "rb") as file:
        return mmap.mmap(file.fileno(), FILE_BYTES, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)


def _slots(area: mmap.mmap) -> list[tuple[int, Progress]]:
    """The whole records among the two slots, each with its sequence."""
    found = []
    for offset in _SLOT_OFFSETS_BYTES:
        raw = area[offset : offset + _BODY.size + _CRC.size]
        body = raw[: _BODY.size]
        if not any(body) or _CRC.unpack(raw[_BODY.size :])[0] != zlib.crc32(body):
            continue
        sequence, attempt, step, micro_step, pid, phase, moved_at, loss, eval_loss, rate, metrics_step = _BODY.unpack(
            body
        )
        progress = Progress(
            attempt=attempt,
            phase=_PHASES[phase],
            step=step,
            micro_step=micro_step,
            pid=pid,
            moved_at_seconds=moved_at,
            metrics_step=metrics_step,
            loss=_unpack_optional(loss),
            eval_loss=_unpack_optional(eval_loss),
            tokens_per_second=_unpack_optional(rate),
        )
        found.append((sequence, progress))
    return found


def _pack_optional(value: float | None) -> float:
    return _ABSENT if value is None else value


def _unpack_optional(value: float) -> float | None:
    """NaN is a loss that must be told; only the one bit pattern that no computation yields means absent."""
    return None if struct.pack("<d", value) == _ABSENT_BYTES else value


_ABSENT_BYTES = struct.pack("<Q", 0x7FF8_C1C1_C1C1_C1C1)
_ABSENT = struct.unpack("<d", _ABSENT_BYTES)[0]
assert math.isnan(_ABSENT)
