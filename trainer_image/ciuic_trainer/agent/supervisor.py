"""The agent's policy: what is wanted, what is so, and what to do about it. Pure; driven by `runtime` and the simulation.

`step` is called whenever something changed and once a second. It speaks levels: the same call with the same facts asks
for the same effects again, and carrying out an effect twice changes nothing. The ranks of one attempt are started at
most once in a pod's life, also when the agent itself was restarted in between (`Local.started` survives that).
"""

from dataclasses import dataclass, replace

from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import AgentState, Directive

RANKS_GONE_SECONDS = 10.0
"""After KILL nothing of the ranks may be left for longer than this; otherwise the pod is of no use any more."""
DEFAULT_GRACE_SECONDS = 30.0
"""For a last checkpoint, when the pod ends before any directive was heard."""
FINISH_UPLOAD_SECONDS = 20.0
"""How long the end of a job waits for uploads: the newest checkpoint of a job that failed may not be in S3 yet."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is so in the pod, looked up just before."""

    ranks_alive: int = 0
    ranks_started: bool = False
    """Whether ranks of the local attempt were started in this agent's life."""
    leftovers: int = 0
    """Processes that ranks left behind, alive under whatever parent."""
    restored: CheckpointId | None = None
    """The checkpoint that is whole and verified in this pod's memory tier, for the restore that was asked for."""
    restore_failed: bool = False
    """The restore that was asked for can not be had; it is reported and no rank is started."""
    uploads_done: bool = True
    importing: bool = False
    """The process that ranks are forked from still imports what they import."""


@dataclass(frozen=True, kw_only=True)
class Local:
    """What the agent remembers from one step to the next."""

    attempt: int = 0
    state: AgentState = AgentState.QUIESCED
    started: int = 0
    """Highest attempt whose ranks were ever started in this pod. Kept in the memory tier."""
    since: float = 0.0
    """When `state` was entered, of the monotonic clock."""
    terminated: float | None = None
    """When the pod was told to end (SIGTERM)."""
    finishing: float | None = None
    """When the agent was told that all is done."""
    ranks_remain: bool = False


@dataclass(frozen=True)
class Kill:
    """SIGKILL to all ranks and all they left behind."""


@dataclass(frozen=True)
class Terminate:
    """SIGTERM to the ranks: they write a last checkpoint and end."""


@dataclass(frozen=True)
class Adopt:
    """A new attempt, and nothing of the one before runs here: choose a rendezvous port, look at the run, check the pod."""

    attempt: int


@dataclass(frozen=True)
class Restore:
    """Bring the checkpoint into the memory tier, verified; discard what is not on the lineage."""

    directive: Directive


@dataclass(frozen=True)
class Start:
    """Note the attempt in the memory tier, then start its ranks."""

    directive: Directive


@dataclass(frozen=True)
class Exit:
    """End the agent."""

    code: int = 0


Effect = Kill | Terminate | Adopt | Restore | Start | Exit


def boot(started: int, now: float) -> Local:
    """A new agent process. Ranks that an earlier one had started died with it: that attempt is over in this pod."""
    state = AgentState.EXITED if started else AgentState.QUIESCED
    return Local(attempt=started, state=state, started=started, since=now)


def step(local: Local, directive: Directive | None, facts: Facts, now: float) -> tuple[Local, tuple[Effect, ...]]:
    """`directive` is the newest that was heard; one of an older attempt than the local one is as good as none."""
    if local.terminated is not None:
        return _ending(local, directive, facts, now)
    if directive is None or directive.attempt < local.attempt:
        return _watch(local, facts, now), ()
    if directive.attempt > local.attempt:
        return _change_attempt(local, directive, facts, now)
    if directive.finish:
        return _finishing(local, facts, now)
    if directive.stop:
        return _stopping(local, directive, facts, now)
    if directive.run:
        return _running(local, directive, facts, now)
    # `run: false` after the start is a directive from before it that came late: it never stops healthy ranks.
    return _watch(local, facts, now), ()


def terminate(local: Local, now: float) -> Local:
    """SIGTERM: the pod is being deleted or drained."""
    return local if local.terminated is not None else replace(local, terminated=now)


def _enter(local: Local, state: AgentState, now: float) -> Local:
    return local if local.state is state else replace(local, state=state, since=now)


def _watch(local: Local, facts: Facts, now: float) -> Local:
    """Nothing is asked for: only what ends by itself changes the state."""
    if local.state in (AgentState.RUNNING, AgentState.STOPPING) and not facts.ranks_alive:
        return _enter(local, AgentState.EXITED, now)
    return local


def _change_attempt(local: Local, directive: Directive, facts: Facts, now: float) -> tuple[Local, tuple[Effect, ...]]:
    """KILL at once: under ZeRO-3 what the old ranks still do is of no use. Adopted only when nothing of them is left."""
    if facts.ranks_alive or facts.leftovers:
        local = _enter(local, AgentState.KILLING, now)
        return replace(local, ranks_remain=now - local.since > RANKS_GONE_SECONDS), (Kill(),)
    local = replace(local, attempt=directive.attempt, state=AgentState.QUIESCED, since=now, ranks_remain=False)
    return local, (Adopt(directive.attempt),)


def _finishing(local: Local, facts: Facts, now: float) -> tuple[Local, tuple[Effect, ...]]:
    if facts.ranks_alive or facts.leftovers:
        return _enter(local, AgentState.KILLING, now), (Kill(),)
    local = replace(local, finishing=now if local.finishing is None else local.finishing)
    waited_long = local.finishing is not None and now - local.finishing > FINISH_UPLOAD_SECONDS
    return local, ((Exit(),) if facts.uploads_done or waited_long else ())


def _stopping(local: Local, directive: Directive, facts: Facts, now: float) -> tuple[Local, tuple[Effect, ...]]:
    if not facts.ranks_alive:
        return _watch(local, facts, now), ((Kill(),) if facts.leftovers else ())
    local = _enter(local, AgentState.STOPPING, now)
    if now - local.since > directive.grace_seconds:
        return local, (Kill(),)
    return local, (Terminate(),)


def _running(local: Local, directive: Directive, facts: Facts, now: float) -> tuple[Local, tuple[Effect, ...]]:
    if local.started >= local.attempt:
        return _watch(local, facts, now), ()
    if facts.restore_failed:
        return _enter(local, AgentState.QUIESCED, now), ()
    if directive.restore is not None and facts.restored != directive.restore.checkpoint:
        return _enter(local, AgentState.RESTORING, now), (Restore(directive),)
    if not directive.rendezvous:
        return local, ()  # a new operator has not heard slot 0 yet
    if facts.importing:
        return local, ()
    return replace(_enter(local, AgentState.RUNNING, now), started=local.attempt), (Start(directive),)


def _ending(local: Local, directive: Directive | None, facts: Facts, now: float) -> tuple[Local, tuple[Effect, ...]]:
    """The pod ends: a last checkpoint if there is time, then its upload. The kubelet's KILL is the limit."""
    if facts.ranks_alive:
        local = _enter(local, AgentState.STOPPING, now)
        grace = directive.grace_seconds if directive is not None else DEFAULT_GRACE_SECONDS
        return local, ((Kill(),) if now - local.since > grace else (Terminate(),))
    if facts.leftovers:
        return local, (Kill(),)
    return _watch(local, facts, now), ((Exit(),) if facts.uploads_done else ())
