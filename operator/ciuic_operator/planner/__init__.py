"""The policy of the product: World -> Plan. Pure; called by `reconcile` and by the simulation.

RULES is read top to bottom and the first rule that answers wins. Each decision carries its reason.
"""

from dataclasses import replace

from ..model import Plan, World
from . import accounting, admission, ending, failing, hanging, progress, starting, suspending
from .directives import directives
from .warnings import with_warnings

RULES = (
    ending.deleting,
    ending.finished,
    admission.impossible,
    suspending.suspended,
    suspending.resumed,
    ending.past_deadline,
    starting.surplus_pods,
    ending.succeeded,
    failing.failed,
    hanging.hanging,
    progress.running,
    starting.old_pods,
    starting.pods_elsewhere,
    starting.missing_pods,
    starting.first_attempt,
    starting.waiting_pods,
    starting.quiescing,
    starting.release,
)


def plan(world: World) -> Plan:
    seen = world.with_status(progress.observed(world))
    decided = next(answer for rule in RULES if (answer := rule(seen)) is not None)
    if world.job.deleting:
        return decided
    decided = accounting.accounted(world, with_warnings(world, decided))
    return replace(decided, directives=directives(seen, decided.status))
