"""Virtual time: a heap of things to happen. Nothing of the simulation looks at a real clock."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

EPOCH = datetime(2026, 11, 30, tzinfo=UTC)


@dataclass
class Clock:
    now: float = 0.0
    """Seconds since the beginning of the story."""
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), what))

    def run(self, until: float, stop: Callable[[], bool]) -> None:
        while self._heap and self._heap[0][0] <= until and not stop():
            self.now, _, what = heapq.heappop(self._heap)
            what()

    @property
    def datetime(self) -> datetime:
        return EPOCH + timedelta(seconds=self.now)
