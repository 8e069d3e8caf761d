"""Which rank holds the others up, named from where they all stand. Pure; called by the planner.

In a job of collectives one rank that does not come holds up all others, who wait for it inside one. So the one that does
not wait is the one that the others wait for. Where all wait, they may wait for different things: then it is the few, or
those who have come least far. Where all wait in one place nobody is named: what holds them is not in their stacks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ciuic_api.protocol import Stack

INNERMOST = 4
"""Frames in which a wait for other ranks shows."""
CALLER_FRAMES = 6
COLLECTIVES = ("distributed/", "deepspeed/comm/", "/comm/comm.py", "nccl", "gloo")
WAITS = ("torch/", "deepspeed/", "runtime/zero/", "zero/")
WAITING_FUNCTIONS = frozenset({"wait", "synchronize", "wait_all", "barrier", "monitored_barrier"})


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """A second signal beside the standstill; `rank` is None when ranks contradict each other and none stands out."""

    rank: int | None
    why: str
    place: str
    """Where it stands, without line numbers: equal for equal hangs."""


def named(stacks: Sequence[Stack], places: Mapping[int, tuple[int, int]]) -> Culprit | None:
    """`places`: (step, micro-step) by rank. None: the stacks say nothing against anybody."""
    stopped = [stack for stack in stacks if stack.process_state in ("T", "t")]
    if stopped:
        return Culprit(rank=stopped[0].rank, why="its process is stopped by a signal", place="stopped")
    answered = [stack for stack in stacks if stack.frames]
    waiting = [stack for stack in answered if waits_for_others(stack)]
    absent = [stack for stack in answered if not waits_for_others(stack)]
    mute = [stack for stack in stacks if not stack.frames]
    if waiting and mute:
        why = f"it does not answer (process state {mute[0].process_state or 'unknown'})"
        return Culprit(rank=mute[0].rank, why=why, place="mute")
    if waiting and absent:
        first = min(absent, key=lambda stack: (places.get(stack.rank, (0, 0)), stack.rank))
        return _at(first, "it is not in the collective that the others wait in")
    if len(waiting) > 1:
        return _contradiction(waiting, places)
    return None


def _contradiction(waiting: Sequence[Stack], places: Mapping[int, tuple[int, int]]) -> Culprit | None:
    """All wait, but not all for the same."""
    callers = Counter(caller(stack) for stack in waiting)
    if len(callers) > 1:
        (most, count), (_, second) = callers.most_common(2)
        if count > second:
            few = next(stack for stack in waiting if caller(stack) != most)
            return _at(few, "it is in another collective than most")
    behind = min(places.get(stack.rank, (0, 0)) for stack in waiting)
    late = [stack for stack in waiting if places.get(stack.rank, (0, 0)) == behind]
    if len(late) < len(waiting):
        return _at(late[0], f"it is behind the others, at step {behind[0]}, micro-step {behind[1]}")
    if len(callers) > 1:
        return Culprit(rank=None, why="the ranks wait in different collectives", place="mismatch")
    return None


def _at(stack: Stack, why: str) -> Culprit:
    kernel = ", asleep in the kernel" if stack.process_state == "D" else ""
    return Culprit(rank=stack.rank, why=f"{why}: {stack.frames[0]}{kernel}", place=_without_line(stack.frames[0]))


def waits_for_others(stack: Stack) -> bool:
    return any(_is_wait(frame) for frame in stack.frames[:INNERMOST])


def caller(stack: Stack) -> tuple[str, ...]:
    """Who called the collective: the frames outside of the machinery."""
    return tuple(frame for frame in stack.frames if not _is_wait(frame))[:CALLER_FRAMES]


def _is_wait(frame: str) -> bool:
    place, _, function = frame.rpartition(" ")
    if any(part in place for part in COLLECTIVES):
        return True
    return function in WAITING_FUNCTIONS and place.startswith(WAITS)


def _without_line(frame: str) -> str:
    place, _, function = frame.rpartition(" ")
    return f"{place.rpartition(':')[0]} {function}"
