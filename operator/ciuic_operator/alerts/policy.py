"""When one receiver is told, and what is dropped: merged, spaced, tried again, bounded. Pure; time is an argument.

The first alert waits for the length of a window, so that what follows it at once (a restart and its end) comes in one
message. The same length lies between two messages: 12 a minute, where WeCom and DingTalk take 20 and mute beyond.
"""

from dataclasses import dataclass

from ciuic_api.alerting import AlertKind

from .model import Alert

WINDOW_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
"""A job that waits is told of when it still waits after this long: autoscalers and busy stores take a while."""
KEPT = 200
"""Alerts that wait in one mailbox; the oldest make room."""
OLD_SECONDS = 3600.0
"""What could not be delivered for this long is dropped."""
BACKOFF_SECONDS = (5.0, 300.0)
"""After the first failure, and at most. A server that names a longer time gets it, up to OLD_SECONDS."""


@dataclass(frozen=True)
class Entry:
    alert: Alert
    put_at: float
    due_at: float


@dataclass(frozen=True)
class Batch:
    entries: tuple[Entry, ...]
    dropped: int
    """To be said in the message."""

    @property
    def alerts(self) -> tuple[Alert, ...]:
        return tuple(entry.alert for entry in self.entries)


class Mailbox:
    """What one receiver is still to be told. A batch that was taken must come back by sent, failed or refused."""

    def __init__(self) -> None:
        self._waiting: list[Entry] = []
        self._not_before = 0.0
        self._failures = 0
        self._unsaid = 0
        self.dropped = 0
        """All alerts that were dropped so far."""

    def put(self, alert: Alert, now: float) -> None:
        pause = PATIENCE_SECONDS if alert.kind is AlertKind.WAITING else WINDOW_SECONDS
        self._waiting.append(Entry(alert, now, now + pause))
        self._make_room()

    def withdraw(self, job_uid: str) -> None:
        """The job does not wait any more: nobody needs to hear that it did."""
        self._waiting = [e for e in self._waiting if (e.alert.job_uid, e.alert.kind) != (job_uid, AlertKind.WAITING)]

    def due_in(self, now: float) -> float | None:
        """Seconds until the next message; None when there is nothing to tell."""
        if not self._waiting:
            return None
        return max(0.0, self._not_before - now, min(entry.due_at for entry in self._waiting) - now)

    def take(self, now: float) -> Batch:
        """Everything but what may still be withdrawn."""
        young = [entry for entry in self._waiting if now - entry.put_at <= OLD_SECONDS]
        self._drop(len(self._waiting) - len(young))
        ready: list[Entry] = []
        held: list[Entry] = []
        for entry in young:
            is_held = entry.alert.kind is AlertKind.WAITING and entry.due_at > now
            (held if is_held else ready).append(entry)
        self._waiting = held
        return Batch(tuple(ready), self._unsaid)

    def sent(self, batch: Batch, now: float) -> None:
        self._unsaid -= batch.dropped
        self._failures = 0
        self._not_before = now + WINDOW_SECONDS

    def failed(self, batch: Batch, now: float, asked_seconds: float = 0.0) -> None:
        """To be tried again, together with what comes meanwhile."""
        self._waiting = [*batch.entries, *self._waiting]
        self._make_room()
        self._back_off(now, asked_seconds)

    def refused(self, batch: Batch, now: float) -> None:
        """The server will never take it."""
        self._drop(len(batch.entries))
        self._back_off(now, 0.0)

    def _back_off(self, now: float, asked_seconds: float) -> None:
        low, high = BACKOFF_SECONDS
        wait = min(high, low * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._not_before = now + max(wait, min(asked_seconds, OLD_SECONDS))

    def _make_room(self) -> None:
        surplus = max(0, len(self._waiting) - KEPT)
        self._waiting = self._waiting[surplus:]
        self._drop(surplus)

    def _drop(self, count: int) -> None:
        self._unsaid += count
        self.dropped += count
