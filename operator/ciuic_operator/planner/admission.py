"""The rule about specs that cannot run and that the API server could not refuse. Pure."""

from ciuic_api.jobstatus import State
from ciuic_api.reasons import Reason

from ..manifests import memory_tier_problem
from ..model import Plan, World
from .plans import say


def impossible(world: World) -> Plan | None:
    """Only before anything runs: a job that trains is never stopped because its labels no longer make sense."""
    job, status = world.job, world.job.status
    if status.attempt > 0 or world.pods:
        return None
    problems = job.problems
    too_small = memory_tier_problem(job)
    if too_small is not None:
        problems = (*problems, (Reason.MEMORY_TIER_TOO_SMALL, too_small))
    if not problems:
        return None
    reason, message = problems[0]
    return say(world, status, State.PENDING, reason, message, warning=True, recheck_after=3600.0)
