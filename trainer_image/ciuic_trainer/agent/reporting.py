"""What a report says of ranks: phases and steps, the failure, the metrics of rank 0. Used by `runtime`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ciuic_api.protocol import STOPPED_EXIT_CODE, AgentFailure, Metrics, RankState
from ciuic_trainer.shared.progress import Progress, ProgressReader

from . import failure
from .processes import Rank

PACE_STEPS = 30


def rank_states(ranks: Mapping[int, Rank], readers: Mapping[int, ProgressReader], now: float) -> tuple[RankState, ...]:
    states = []
    for number, rank in sorted(ranks.items()):
        seen = readers[number].read()
        states.append(
            RankState(
                rank=number,
                phase=str(seen.phase) if seen else "init",
                step=seen.step if seen else 0,
                micro_step=seen.micro_step if seen else 0,
                unmoved_seconds=max(0.0, now - seen.moved_at_seconds) if seen else 0.0,
                exit_code=rank.exit_code,
            )
        )
    return tuple(states)


def rank_failure(ranks: Sequence[Rank], now: float, killed: str) -> AgentFailure | None:
    """Of the rank that failed first: the others mostly fail because of it. `killed`: why SIGKILL came, if known."""
    dead = [rank for rank in ranks if rank.exit_code not in (None, 0, STOPPED_EXIT_CODE)]
    if not dead:
        return None
    first = min(dead, key=lambda rank: (rank.ended_at or now, rank.rank))
    return failure.describe(first.rank, first.exit_code or 0, list(first.lines), now - (first.ended_at or now), killed)


@dataclass
class Pace:
    """Metrics from rank 0's record. None until a step beyond the restored one is completed."""

    restored_step: int
    _seen: list[tuple[float, int]] = field(default_factory=list)
    """When which step was first seen."""

    def metrics(self, seen: Progress | None, now: float) -> Metrics | None:
        if seen is None or seen.step <= self.restored_step:
            return None
        if not self._seen or self._seen[-1][1] != seen.step:
            self._seen = [*self._seen[-PACE_STEPS:], (now, seen.step)]
        (then, first), (last, step) = self._seen[0], self._seen[-1]
        return Metrics(
            step=seen.step,
            loss=seen.loss,
            tokens_per_second=seen.tokens_per_second,
            steps_per_second=(step - first) / (last - then) if last > then else None,
            eval_loss=seen.eval_loss,
        )
