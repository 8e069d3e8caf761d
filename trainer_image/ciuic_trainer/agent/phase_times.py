"""How long ranks stay in one place while all is well: what the planner measures a standstill against. Used by `runtime`."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ciuic_api.protocol import PhaseTime
from ciuic_trainer.shared.progress import Phase, Progress

KEPT = 512
"""Of each phase; of fast steps this is what the last minutes were like."""


@dataclass
class PhaseTimes:
    """Fed with every look at the ranks of one attempt. What happens between two looks counts as one movement."""

    _last: dict[int, Progress] = field(default_factory=dict)
    _seconds: dict[Phase, deque[float]] = field(default_factory=dict)

    def look(self, ranks: Mapping[int, Progress | None]) -> None:
        for rank, seen in ranks.items():
            before = self._last.get(rank)
            if seen is None or seen == before:
                continue
            self._last[rank] = seen
            if before is not None:
                stayed = seen.moved_at_seconds - before.moved_at_seconds
                self._seconds.setdefault(before.phase, deque(maxlen=KEPT)).append(stayed)

    def told(self) -> tuple[PhaseTime, ...]:
        return tuple(
            PhaseTime(phase=str(phase), count=len(seconds), p99_seconds=round(percentile(seconds, 0.99), 2))
            for phase, seconds in sorted(self._seconds.items())
        )


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]
