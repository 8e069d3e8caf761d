"""Rules about runPolicy.suspend: stop gracefully with a last checkpoint, and go on later. Pure."""

from ciuic_api.jobstatus import State
from ciuic_api.reasons import Reason

from ..model import Action, DeletePod, Plan, World
from ..status import changed, seconds_since, timestamp
from .plans import next_attempt, say

SUSPEND_LIMIT_SECONDS = 300.0
"""How long a graceful stop may take, the upload of its last checkpoint included, before the pods go anyway."""


def suspended(world: World) -> Plan | None:
    job, status = world.job, world.job.status
    if not job.spec.run_policy.suspend:
        return None
    if not world.pods:
        message = "suspended; set runPolicy.suspend to false to go on"
        return say(world, status, State.SUSPENDED, Reason.SUSPENDED, message, recheck_after=3600.0)
    message = "the ranks write a last checkpoint, it is uploaded, then the pods go"
    if status.state is not State.SUSPENDING:
        return say(world, status, State.SUSPENDING, Reason.SUSPENDING, message, urgent=True, recheck_after=0.0)
    living = [pod for pod in world.pods if not pod.deleting]
    reports = world.reports
    stopped = len(reports) == len(world.current) and all(report.uploads_done for report in reports.values())
    too_long = seconds_since(status.state_since, world.now) > SUSPEND_LIMIT_SECONDS
    actions: tuple[Action, ...] = ()
    if stopped or too_long or not status.released or world.elsewhere:
        # Agents that look for another operator are never told; their SIGTERM is the request to stop in good order.
        actions = tuple(DeletePod(name=pod.name, uid=pod.uid, why="the job is suspended") for pod in living)
    return say(world, status, State.SUSPENDING, Reason.SUSPENDING, message, actions=actions, recheck_after=5.0)


def resumed(world: World) -> Plan | None:
    """A new attempt: what was told to stop is never told to run again."""
    status = world.job.status
    if status.state not in (State.SUSPENDED, State.SUSPENDING):
        return None
    if status.attempt > 0:
        status = next_attempt(status)
    status = changed(status, started_at=timestamp(world.now), pod_template_hash=None)
    message = f"goes on as attempt {status.attempt}" if status.attempt else "starts"
    return say(world, status, State.PENDING, Reason.RESUMED, message, urgent=True, recheck_after=0.0)
