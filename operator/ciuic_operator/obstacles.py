"""What stood in the way of creating pods. Noted by `execute`, taken into the next World by `observe`."""

from collections import defaultdict


class Obstacles:
    def __init__(self) -> None:
        self._taken: defaultdict[str, set[str]] = defaultdict(set)
        self._refused: dict[str, str] = {}

    def name_taken(self, job_uid: str, pod_name: str) -> None:
        """The name belongs to somebody else's pod."""
        self._taken[job_uid].add(pod_name)

    def name_free(self, job_uid: str, pod_name: str) -> None:
        self._taken[job_uid].discard(pod_name)

    def taken(self, job_uid: str) -> frozenset[str]:
        return frozenset(self._taken.get(job_uid, ()))

    def refuse(self, job_uid: str, words: str) -> None:
        """The server does not take the pod; empty words: it has taken one."""
        self._refused[job_uid] = words

    def refused(self, job_uid: str) -> str:
        return self._refused.get(job_uid, "")

    def forget(self, job_uid: str) -> None:
        self._taken.pop(job_uid, None)
        self._refused.pop(job_uid, None)
