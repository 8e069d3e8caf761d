"""The jobs as they are known now. Fed by kopf's stream, by our own writes and by the minute's list; read by `observe`.

A job is never taken from older to newer and back: whatever is older than what is known is dropped, so that a decision
never rests on a status from before our own last write.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .kube import JobKey
from .parse import Parsed, parse


class Jobs:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, Parsed] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._streamed: dict[str, int] = {}
        """Newest version of each job that kopf's stream has shown."""
        self._behind: dict[str, tuple[int, float]] = {}
        """Jobs whose newer version a list has shown before the stream: that version, and since when."""

    def __len__(self) -> int:
        return len(self._known)

    def get(self, uid: str) -> Parsed | None:
        return self._known.get(uid)

    def named(self, namespace: str, name: str) -> str | None:
        """UID of the newest job object of that name."""
        return self._by_name.get((namespace, name))

    def all(self) -> Iterable[Parsed]:
        return tuple(self._known.values())

    def streamed(self, body: Mapping[str, Any]) -> bool:
        """A body from kopf's stream. False when it is older than what is known."""
        meta = body["metadata"]
        uid, version = str(meta["uid"]), int(meta["resourceVersion"])
        self._streamed[uid] = max(version, self._streamed.get(uid, 0))
        if uid in self._behind and version >= self._behind[uid][0]:
            del self._behind[uid]
        return self.accept(body)

    def accept(self, body: Mapping[str, Any]) -> bool:
        """A body from anywhere else. False when it is older than what is known."""
        meta = body["metadata"]
        known = self._known.get(str(meta["uid"]))
        if known is not None and int(known.version) >= int(meta["resourceVersion"]):
            return False
        parsed = parse(body)
        self._known[parsed.job.uid] = parsed
        self._by_name[parsed.job.namespace, parsed.job.name] = parsed.job.uid
        return True

    def gone(self, uid: str) -> None:
        known = self._known.pop(uid, None)
        self._streamed.pop(uid, None)
        self._behind.pop(uid, None)
        if known is not None and self.named(known.job.namespace, known.job.name) == uid:
            del self._by_name[known.job.namespace, known.job.name]

    def compare(self, version: int, keys: Iterable[JobKey]) -> tuple[list[str], list[JobKey]]:
        """What a fresh list shows: UIDs that are gone, and jobs of which the stream has not shown the newest version."""
        listed = {key.uid: key for key in keys}
        gone = [uid for uid, known in self._known.items() if uid not in listed and int(known.version) <= version]
        missed = []
        for key in listed.values():
            newest = int(key.resource_version)
            if self._streamed.get(key.uid, 0) < newest:
                self._behind.setdefault(key.uid, (newest, self._clock()))
                missed.append(key)
            else:
                self._behind.pop(key.uid, None)
        for uid in [uid for uid in self._behind if uid not in listed]:
            del self._behind[uid]
        return gone, missed

    def stream_age(self) -> float:
        """Seconds for which the stream has owed us a change; 0 when it owes none."""
        return max((self._clock() - since for _, since in self._behind.values()), default=0.0)
