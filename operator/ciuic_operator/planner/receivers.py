"""Alerts that nobody would get are said on the job. Pure; part of every plan, whatever rule makes it."""

from dataclasses import replace

from ciuic_api.reasons import Reason

from ..model import EmitEvent, Plan, World
from ..status import changed, with_condition

CONDITION = "UnknownReceiver"


def with_unknown_receivers(world: World, plan: Plan) -> Plan:
    """A condition while spec.alerts names a receiver that the chart does not define, and an event when it begins to."""
    job, status = world.job, plan.status
    unknown = sorted({route.receiver for route in job.spec.alerts or ()} - world.receivers)
    known = ", ".join(sorted(world.receivers)) or "none"
    names = ", ".join(unknown)
    message = (
        f"spec.alerts names {names}, but the chart defines: {known}; correct the name or add it to alerts.receivers"
    )
    told = next((condition for condition in status.conditions if condition.type == CONDITION), None)
    if not unknown and told is None:
        return plan
    if told is not None and told.status == "True" and told.message != message:
        status = changed(status, conditions=tuple(c for c in status.conditions if c is not told))
        told = None
    status = with_condition(status, CONDITION, bool(unknown), str(Reason.UNKNOWN_RECEIVER), message, world.now)
    if unknown and (told is None or told.status == "False"):
        event = EmitEvent(reason=Reason.UNKNOWN_RECEIVER, message=message, warning=True)
        return replace(plan, status=status, actions=(*plan.actions, event))
    return replace(plan, status=status)
