"""Which fields of a job may change, and when: the rules that compare a job with what it was. Used by `crd` and `docs`."""

from .schema import cel
from .training import FIXED_FIELDS, Training


def _unchanged(dotted: str, while_suspended: bool = False) -> dict[str, str]:
    """A transition rule for one field, written at the root so that removing and adding again is seen as well."""
    owner = dotted.rpartition(".")[0]
    present = {}
    for side in ("self", "oldSelf"):
        has = f"has({side}.spec.{dotted})"
        present[side] = f"(has({side}.spec.{owner}) && {has})" if owner else has
    rule = (
        f"{present['self']} == {present['oldSelf']}"
        f" && (!{present['self']} || self.spec.{dotted} == oldSelf.spec.{dotted})"
    )
    if while_suspended:
        rule = f"({rule}) || (has(oldSelf.status) && has(oldSelf.status.state) && oldSelf.status.state == 'Suspended')"
        message = f"{dotted} may change only while the job is suspended; set runPolicy.suspend: true and wait for it"
    else:
        message = f"{dotted} can not be changed; delete the job and apply it again {_afterwards(dotted)}"
    return cel(rule, message, field_path=".spec")


def _afterwards(dotted: str) -> str:
    if dotted in NOT_RESUMED:
        return "with another checkpoint.run: checkpoints fit one world size, model, data and seed"
    if dotted in ("checkpoint.path", "checkpoint.run"):
        return "(it goes on from what it finds there, or starts at step 0)"
    return "(it resumes from its checkpoints)"


NOT_RESUMED = ("nodes", "ranksPerNode", *(f"training.{name}" for name in FIXED_FIELDS))
"""Checkpoints of a training with another value do not fit: `ciuic_api.contract`."""

FIXED = (
    *("nodes", "ranksPerNode", "accelerator", "command", "prefork", "network", "memory", "cache"),
    *(f"training.{name}" for name in FIXED_FIELDS),
    *(f"checkpoint.{name}" for name in ("path", "run", "resume", "secretName", "s3", "every", "memory")),
)
"""Never change in a job's life."""

WHILE_SUSPENDED = (
    *("image", "podTemplate"),
    *(
        f"training.{name}"
        for field, info in Training.model_fields.items()
        if (name := info.alias or field) not in FIXED_FIELDS
    ),
)
"""Change only while the job is suspended. What is in neither list changes at any time."""

TRANSITIONS = (
    cel(
        "has(self.spec.training) == has(oldSelf.spec.training)",
        "training can not be added or removed; delete the job and apply another",
        ".spec",
    ),
    *(_unchanged(dotted) for dotted in FIXED),
    *(_unchanged(dotted, while_suspended=True) for dotted in WHILE_SUSPENDED),
)
