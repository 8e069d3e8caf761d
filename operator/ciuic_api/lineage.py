"""Which checkpoints count. Used by the planner and by slot 0's agent, so that both judge alike.

A checkpoint is identified by (step, attempt) in every tier. The lineage is the chain of attempts that led to the
current one; what an ancestor wrote beyond the step at which its successor forked belongs to a dead branch.
"""

from collections.abc import Iterable, Sequence

import msgspec


class CheckpointId(msgspec.Struct, frozen=True, order=True):
    """Order is by step first: of two checkpoints on one lineage the greater is the newer."""

    step: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.step}.a{self.attempt}"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One link of the lineage. `restored` is None for an attempt that started at step 0."""

    attempt: int
    parent: int | None = None
    restored: CheckpointId | None = None


def fork_steps(tip: int, attempts: Iterable[Attempt]) -> dict[int, int | None]:
    """For each attempt on the lineage of `tip`, the highest step of its that counts; None means all of them.

    An attempt that started at step 0 ends the chain: nothing that came before it counts. An unknown parent ends it too.
    """
    known = {a.attempt: a for a in attempts}
    limits: dict[int, int | None] = {}
    current: int | None = tip
    limit: int | None = None
    while current is not None and current not in limits:
        limits[current] = limit
        link = known.get(current)
        if link is None or link.restored is None:
            break
        limit = link.restored.step if limit is None else min(limit, link.restored.step)
        current = link.parent
    return limits


def counts(checkpoint: CheckpointId, tip: int, attempts: Sequence[Attempt]) -> bool:
    limits = fork_steps(tip, attempts)
    if checkpoint.attempt not in limits:
        return False
    limit = limits[checkpoint.attempt]
    return limit is None or checkpoint.step <= limit


def on_lineage(checkpoints: Iterable[CheckpointId], tip: int, attempts: Sequence[Attempt]) -> list[CheckpointId]:
    """Those that count, newest first."""
    limits = fork_steps(tip, attempts)
    kept = []
    for checkpoint in checkpoints:
        limit = limits.get(checkpoint.attempt, -1)
        if limit is None or checkpoint.step <= limit:
            kept.append(checkpoint)
    return sorted(kept, reverse=True)
