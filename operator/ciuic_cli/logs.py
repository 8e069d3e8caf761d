"""Which lines of which pods `logs` shows, and the merging of live ones. The choice is pure."""

import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .errors import CliError, NotFound, Refused, Unreachable
from .snapshot import Pod, Snapshot

PREFIX = re.compile(r"^\[rank (\d+)\] ")
"""The agent puts it before each line of a rank; a line without it is the agent's own."""
REFRESH_SECONDS = 2.0
TAIL_FACTOR = 50


@dataclass(frozen=True, kw_only=True)
class Selection:
    """`slots` None: every pod. `ranks` None: every line of these pods, the agents' own included."""

    slots: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    remark: str = ""
    """Said before the lines, where the choice needs a word."""

    def wants_pod(self, pod: Pod) -> bool:
        return self.slots is None or pod.slot in self.slots

    def shown(self, line: str, slot: int) -> str | None:
        """The line as it is printed, or None."""
        found = PREFIX.match(line)
        if found is None:
            return f"[slot {slot}] {line}" if self.ranks is None else None
        return line if self.ranks is None or int(found[1]) in self.ranks else None


def select(job: Snapshot, rank: str) -> Selection:
    """Of `--rank`: a number, `all` or `failed`."""
    if rank == "all":
        return Selection()
    if rank == "failed":
        return _failed(job)
    if not rank.isdecimal():
        raise CliError(f"--rank is {rank!r}; write a number, all or failed")
    number, world = int(rank), job.nodes * job.ranks_per_node
    if number >= world:
        raise CliError(
            f"--rank is {number} but job {job.name} has {world} ranks; write 0 to {world - 1}, all or failed"
        )
    return Selection(slots=frozenset({number // job.ranks_per_node}), ranks=frozenset({number}))


def _failed(job: Snapshot) -> Selection:
    failure = job.last_failure
    if failure is None:
        raise CliError(f"job {job.name} has had no failure; use --rank all")
    what = f"{failure.reason}: {failure.message}"
    if failure.rank is not None:
        slot = failure.rank // job.ranks_per_node if failure.slot is None else failure.slot
        return Selection(
            slots=frozenset({slot}), ranks=frozenset({failure.rank}), remark=f"rank {failure.rank}, {what}"
        )
    if failure.slot is not None:
        return Selection(slots=frozenset({failure.slot}), remark=f"slot {failure.slot}, {what}")
    return Selection(remark=what)


Lines = Callable[..., Iterable[str]]
"""As `Cluster.log_lines`."""


def recorded(job: Snapshot, selection: Selection, lines: Lines, tail: int | None) -> Iterator[str]:
    """What the pods have written so far, pod after pod; a container that was restarted first as it was before."""
    pods = [pod for pod in job.pods if selection.wants_pod(pod) and pod.ready_to_log]
    if not pods:
        raise CliError(_no_pods(job, selection))
    for pod in pods:
        if tail is None:
            yield from _written(pod, selection, lines)
            continue
        # Reading all of a long log for its last lines is slow, and how many of them are this rank's is not known.
        for server_tail in (TAIL_FACTOR * tail, None):
            kept = list(_written(pod, selection, lines, server_tail))
            if len(kept) >= tail:
                break
        yield from kept[max(len(kept) - tail, 0) :]


def _written(pod: Pod, selection: Selection, lines: Lines, server_tail: int | None = None) -> Iterator[str]:
    for previous in (True, False) if pod.restarts else (False,):
        try:
            for line in lines(pod.name, previous=previous, tail=server_tail):
                shown = selection.shown(line, pod.slot)
                if shown is not None:
                    yield shown
        except (NotFound, Refused):
            continue  # the previous container's log is gone, or the pod went meanwhile


def followed(
    look: Callable[[], Snapshot], selection: Selection, lines: Lines, tail: int | None, wait: float = REFRESH_SECONDS
) -> Iterator[str]:
    """Lines as they come, from the pods there are and those that replace them, until the job is over."""
    arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    seen: set[tuple[str, int]] = set()
    live = 0
    first = True

    def read(pod: Pod, tail: int | None) -> None:
        try:
            for line in lines(pod.name, follow=True, tail=tail):
                shown = selection.shown(line, pod.slot)
                if shown is not None:
                    arrived.put(shown)
        except (NotFound, Refused, Unreachable):
            pass  # the pod went; whatever replaces it is found at the next look
        finally:
            arrived.put(None)

    while True:
        job = look()
        for pod in job.pods:
            if selection.wants_pod(pod) and pod.ready_to_log and (pod.uid, pod.restarts) not in seen:
                seen.add((pod.uid, pod.restarts))
                # The tail counts lines of all ranks: exact for one pod, one rank; else a little more or less.
                threading.Thread(target=read, args=(pod, tail if first else None), daemon=True).start()
                live += 1
        first = first and not seen
        if job.over and live == 0:
            return
        while True:
            try:
                line = arrived.get(timeout=wait)
            except queue.Empty:
                break
            if line is None:
                live -= 1
                break
            yield line


def _no_pods(job: Snapshot, selection: Selection) -> str:
    if selection.slots is not None and job.pods:
        slots = ", ".join(map(str, sorted(selection.slots)))
        return f"no pod of slot {slots} has started yet, or it was replaced and its log went with it; use --rank all"
    return f"job {job.name} has no pod with a log now; it is {job.state}, {job.reason}: {job.message}"
