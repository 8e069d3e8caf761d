"""Rules that bring an attempt from its number to `run: true`: pods, first attempt, quiescence, restore. Pure."""

from ciuic_api.checkpointing import Resume
from ciuic_api.contract import contract, difference
from ciuic_api.jobstatus import CheckpointRef, JobStatus, LineageLink, State
from ciuic_api.lineage import Attempt
from ciuic_api.protocol import RANKS_REMAIN, AgentState, Report, RunState, StoreState
from ciuic_api.reasons import Reason

from ..manifests import pod_template_hash
from ..model import Action, CreatePod, DeletePod, Plan, Pod, World
from ..status import LINEAGE_KEPT, changed, with_link
from .directives import takeable
from .plans import fail, say
from .restore import choose, known_attempts

IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


def _state(status: JobStatus) -> State:
    """Restarting is told apart from the first start until ranks run again."""
    return State.RESTARTING if status.state is State.RESTARTING else State.PENDING


def old_pods(world: World) -> Plan | None:
    """Pods of a deleted job of this name hold their names, and perhaps the run: they end first."""
    if not world.foreign_pods:
        return None
    status = world.job.status
    names = ", ".join(sorted(world.foreign_pods)[:4])
    message = f"waiting for {len(world.foreign_pods)} pods of a deleted job of this name to end: {names}"
    return say(world, status, _state(status), Reason.WAITING_FOR_OLD_PODS, message, recheck_after=1.0)


def surplus_pods(world: World) -> Plan | None:
    """Two living pods of one slot, as a repeated creation could make them: the older number goes."""
    status, living = world.job.status, world.current
    extra = [pod for pod in world.pods if pod.alive and pod.uid != living[pod.slot].uid]
    if not extra:
        return None
    actions = tuple(DeletePod(name=pod.name, uid=pod.uid, why="its slot has a newer pod") for pod in extra)
    reason = Reason.named(status.reason) if status.reason else Reason.CREATING_PODS
    return say(world, status, status.state, reason, status.message, actions=actions, recheck_after=1.0)


def pods_elsewhere(world: World) -> Plan | None:
    """An attempt that starts anyway needs agents that can be told so: pods of another installation are replaced."""
    status = world.job.status
    if status.released or not world.elsewhere:
        return None
    actions = tuple(
        DeletePod(name=pod.name, uid=pod.uid, why="its agent looks for another installation of the operator")
        for pod in world.elsewhere
    )
    message = f"replacing {len(actions)} pods that look for another installation of the operator"
    return say(world, status, _state(status), Reason.CREATING_PODS, message, actions=actions, recheck_after=1.0)


def missing_pods(world: World) -> Plan | None:
    """Every slot without a living pod gets one under a new number, all at once; of the dead, one per slot is kept."""
    job, status = world.job, world.job.status
    living = world.current
    missing = [slot for slot in range(job.spec.nodes) if slot not in living]
    if not missing:
        return None
    first = status.next_incarnation
    actions: list[Action] = [CreatePod(slot=slot, incarnation=first + index) for index, slot in enumerate(missing)]
    actions += [DeletePod(name=pod.name, uid=pod.uid, why="a newer dead pod is kept") for pod in _outdated(world)]
    status = changed(
        status,
        next_incarnation=first + len(missing),
        pod_template_hash=status.pod_template_hash or pod_template_hash(job),
    )
    many = f"pods of slots {missing[0]} to {missing[-1]}" if len(missing) > 1 else f"the pod of slot {missing[0]}"
    reason, message = Reason.CREATING_PODS, f"creating {many}"
    if world.refused:
        reason, message = Reason.POD_CONFIG_ERROR, f"{many} can not be created: {world.refused}"
    return say(
        world,
        status,
        _state(status),
        reason,
        message,
        actions=tuple(actions),
        urgent=True,
        warning=bool(world.refused),
        recheck_after=1.0,
    )


def _outdated(world: World) -> list[Pod]:
    dead = sorted(
        (p for p in world.pods if p.phase in ("Failed", "Succeeded") and not p.deleting), key=lambda p: -p.incarnation
    )
    seen: set[int] = set()
    old = []
    for pod in dead:
        if pod.slot in seen:
            old.append(pod)
        seen.add(pod.slot)
    return old


def first_attempt(world: World) -> Plan | None:
    """Attempt 0 has no process. Its successor's number must be higher than any the run has seen."""
    job, status = world.job, world.job.status
    if status.attempt > 0:
        return None
    if job.spec.checkpoint is None or job.spec.checkpoint.path is None:
        return _number_first(world, run=None)
    agent = world.heard.get(0)
    if agent is None or not agent.connected or agent.report.run is None:
        return None
    run = agent.report.run
    if run.store is StoreState.UNREACHABLE:
        return _wait(world, Reason.WAITING_FOR_STORE, f"the checkpoint store does not answer: {run.message}")
    if run.store is StoreState.REFUSED:
        return _wait(world, Reason.STORE_REFUSED, run.message)
    refusal = _owned_by_other(world, run)
    if refusal is not None:
        return refusal
    if run.manifests or run.refused:
        if job.spec.checkpoint.resume is Resume.NEVER:
            message = "checkpoint.resume is Never and the run has checkpoints; choose another checkpoint.run"
            return fail(world, status, Reason.RUN_HAS_CHECKPOINTS, message)
        training = job.spec.training
        if run.contract and training is not None:
            differs = difference(run.contract, contract(training, job.spec.world_size))
            if differs:
                message = f"the run's checkpoints do not fit this job: {differs}; choose another checkpoint.run"
                return fail(world, status, Reason.CONTRACT_DIFFERS, message)
    return _number_first(world, run)


def _owned_by_other(world: World, run: RunState) -> Plan | None:
    owner = run.owner
    if owner is None or owner.uid == world.job.uid or takeable(world, owner):
        return None
    if owner.cluster != world.cluster:
        message = (
            f"the run belongs to job {owner.namespace}/{owner.name} ({owner.uid}) of another cluster; when it is dead,"
            f" annotate this job with ciuic.io/take-over-run: {owner.uid}, else choose another checkpoint.run"
        )
        return _wait(world, Reason.RUN_OWNED_ELSEWHERE, message)
    if world.owner_alive is None:
        message = "looking whether the run's owner still lives"
        status = world.job.status
        return say(world, status, _state(status), Reason.CHOOSING_RESTORE, message, recheck_after=1.0)
    checkpoint = world.job.spec.checkpoint
    run_name = checkpoint.run if checkpoint is not None else ""
    message = (
        f"the run {run_name} belongs to the living job {owner.namespace}/{owner.name}; choose another"
        " checkpoint.run or delete that job"
    )
    return _wait(world, Reason.RUN_OWNED, message)


def _wait(world: World, reason: Reason, message: str, recheck_after: float = 5.0) -> Plan:
    status = world.job.status
    return say(world, status, _state(status), reason, message, warning=True, recheck_after=recheck_after)


def _number_first(world: World, run: RunState | None) -> Plan:
    status = world.job.status
    seen = [report.attempt for report in world.reports.values()]
    parent: int | None = None
    if run is not None:
        seen += [run.owner.attempt if run.owner else 0, *(link.attempt for link in run.attempts)]
        # A record is written before an attempt's first manifest: the highest one is the tip of what was committed.
        parent = max((link.attempt for link in run.attempts), default=None)
    status = changed(status, attempt=max([0, *seen]) + 1, parent=parent)
    if run is not None:
        status = changed(status, lineage=tuple(_as_link(link) for link in run.attempts[-LINEAGE_KEPT:]))
    return say(
        world,
        status,
        State.PENDING,
        Reason.WAITING_FOR_AGENTS,
        f"attempt {status.attempt} is numbered",
        urgent=True,
        recheck_after=0.0,
    )


def _as_link(link: Attempt) -> LineageLink:
    restored = CheckpointRef(step=link.restored.step, attempt=link.restored.attempt) if link.restored else None
    return LineageLink(attempt=link.attempt, parent=link.parent, restored=restored)


def waiting_pods(world: World) -> Plan | None:
    """Some agent is not here yet: say what the slowest pod waits for."""
    pods, agents = world.current, world.heard
    silent = [pod for slot, pod in sorted(pods.items()) if slot not in agents or not agents[slot].connected]
    if not silent:
        return None
    status = world.job.status
    reason, message = min(
        (_what_it_waits_for(pod, world.held_up.get(pod.uid, "")) for pod in silent),
        key=lambda found: ORDER.index(found[0]),
    )
    message = f"{len(pods) - len(silent)}/{len(pods)} pods are ready; {message}"
    warning = reason not in (Reason.WAITING_FOR_PODS, Reason.WAITING_FOR_AGENTS)
    return say(world, status, _state(status), reason, message, warning=warning, recheck_after=5.0)


ORDER = [
    Reason.IMAGE_UNAVAILABLE,
    Reason.POD_CONFIG_ERROR,
    Reason.UNSCHEDULABLE,
    Reason.POD_FAILED,
    Reason.WAITING_FOR_PODS,
    Reason.WAITING_FOR_AGENTS,
]
"""What somebody has to act on comes first."""


def _what_it_waits_for(pod: Pod, held_up: str) -> tuple[Reason, str]:
    if pod.waiting_reason in IMAGE_REASONS:
        return Reason.IMAGE_UNAVAILABLE, f"the image of pod {pod.name} can not be pulled: {pod.waiting_message}"
    if pod.waiting_reason in CONFIG_REASONS:
        return Reason.POD_CONFIG_ERROR, f"pod {pod.name} can not be started: {pod.waiting_message}"
    if held_up:
        return Reason.POD_CONFIG_ERROR, f"pod {pod.name} can not be started: {held_up}"
    if pod.unschedulable:
        return Reason.UNSCHEDULABLE, f"pod {pod.name} fits on no node: {pod.unschedulable}"
    if pod.waiting_reason == "CrashLoopBackOff" or pod.restarts > 1:
        return Reason.POD_FAILED, f"the agent in pod {pod.name} ends again and again: {pod.exit_message}"
    if pod.phase == "Running":
        return Reason.WAITING_FOR_AGENTS, f"the agent in pod {pod.name} has not connected yet"
    return Reason.WAITING_FOR_PODS, f"pod {pod.name} is {pod.waiting_reason or 'being scheduled'}"


def quiescing(world: World) -> Plan | None:
    """Every agent says that no rank of any attempt runs any more, and that its checks passed."""
    status, reports = world.job.status, world.reports
    if status.attempt == 0:
        message = "slot 0 looks what the run holds"
        return say(world, status, _state(status), Reason.WAITING_FOR_AGENTS, message, recheck_after=5.0)
    stuck = [
        pod
        for slot, pod in world.current.items()
        if (failure := reports[slot].failure) is not None and failure.reason == RANKS_REMAIN
    ]
    if stuck:
        actions = tuple(DeletePod(name=pod.name, uid=pod.uid, grace_seconds=0, why="ranks remain") for pod in stuck)
        message = f"processes of an older attempt can not be ended in pod {stuck[0].name}; it is replaced"
        return say(world, status, _state(status), Reason.QUIESCING, message, actions=actions, recheck_after=1.0)
    for slot, report in sorted(reports.items()):
        if report.preflight is not None and report.preflight.problems:
            problem = report.preflight.problems[0]
            message = f"slot {slot}: {problem.message}"
            return _wait(world, Reason.PREFLIGHT_FAILED, message)
    late = [slot for slot, report in sorted(reports.items()) if not _is_quiet(report, status.attempt)]
    if not late:
        return None
    message = f"attempt {status.attempt}: waiting for slot {late[0]} to end its old ranks and check its pod"
    return say(world, status, _state(status), Reason.QUIESCING, message, recheck_after=5.0)


def _is_quiet(report: Report, attempt: int) -> bool:
    return report.attempt == attempt and report.state is AgentState.QUIESCED and report.preflight is not None


def release(world: World) -> Plan | None:
    """All is quiet: choose where to start, write it down, and let go."""
    job, status, reports = world.job, world.job.status, world.reports
    has_store = job.spec.checkpoint is not None and job.spec.checkpoint.path is not None
    run = reports[0].run
    if has_store and run is not None and run.store is StoreState.OK:
        refusal = _owned_by_other(world, run)
        if refusal is not None:
            return refusal
    if has_store and (run is None or run.scanned_attempt != status.attempt):
        message = "slot 0 looks what the run holds now"
        return say(world, status, _state(status), Reason.CHOOSING_RESTORE, message, recheck_after=1.0)
    never_ran = not status.lineage or all(link.attempt != status.parent for link in status.lineage)
    if has_store and never_ran and (run is None or run.claimed_attempt != status.attempt):
        message = "slot 0 writes down that the run is this job's"
        return say(world, status, _state(status), Reason.CHOOSING_RESTORE, message, recheck_after=1.0)
    choice = choose(status, dict(reports), job.spec.nodes, has_store)
    if choice.verdict == "fail":
        return fail(world, status, choice.reason, choice.message)
    if choice.verdict == "wait":
        return _wait(world, choice.reason, choice.message)
    restored = (
        CheckpointRef(step=choice.checkpoint.step, attempt=choice.checkpoint.attempt) if choice.checkpoint else None
    )
    if choice.reason is Reason.NO_CHECKPOINT_YET:
        status = changed(status, highest_step=0)
    status = changed(status, released=True, restored=restored, step=restored.step if restored else 0)
    status = changed(status, lineage=tuple(_as_link(link) for link in known_attempts(status, run)[-LINEAGE_KEPT:]))
    status = with_link(status, LineageLink(attempt=status.attempt, parent=status.parent, restored=restored))
    state = State.RESTARTING if status.state is State.RESTARTING else State.STARTING
    warning = choice.reason is Reason.NO_CHECKPOINT_YET
    return say(world, status, state, choice.reason, choice.message, urgent=True, warning=warning, recheck_after=0.0)
