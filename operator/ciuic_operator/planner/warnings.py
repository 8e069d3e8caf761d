"""What is wrong around a job and changes no decision about it: said in a condition and an event. Pure; part of every plan."""

from ciuic_api.conditions import ConditionKind

from ..model import Plan, World
from .plans import with_warning


def with_warnings(world: World, plan: Plan) -> Plan:
    plan = with_warning(world, plan, ConditionKind.UNKNOWN_RECEIVER, _unknown_receivers(world))
    return with_warning(world, plan, ConditionKind.AGENTS_ELSEWHERE, _agents_elsewhere(world))


def _unknown_receivers(world: World) -> str:
    """Alerts that nobody would get."""
    unknown = sorted({route.receiver for route in world.job.spec.alerts or ()} - world.receivers)
    if not unknown:
        return ""
    known = ", ".join(sorted(world.receivers)) or "none"
    names = ", ".join(unknown)
    return f"spec.alerts names {names}, but the chart defines: {known}; correct the name or add it to alerts.receivers"


def _agents_elsewhere(world: World) -> str:
    """After an installation in another place: nothing is restarted for it, but nobody watches either."""
    if not world.elsewhere:
        return ""
    there = ", ".join(sorted({pod.hub.partition("#")[0] or "an unknown address" for pod in world.elsewhere}))
    names = ", ".join(pod.name for pod in world.elsewhere[:4]) + (", ..." if len(world.elsewhere) > 4 else "")
    return (
        f"the agents of {names} look for another installation of the operator at {there}: they train on, and nobody"
        " sees a failure of theirs; suspend and resume the job to move it to this one"
    )
