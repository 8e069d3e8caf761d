"""Each reason that stops a job names a command; each command is whole."""

import shlex

import pytest

from ciuic_api.nextsteps import QUIET, STEPS, next_step
from ciuic_api.reasons import Reason

WAITING = {
    Reason.CREATING_PODS, Reason.WAITING_FOR_PODS, Reason.WAITING_FOR_AGENTS, Reason.QUIESCING, Reason.RESTORING,
    Reason.CHOOSING_RESTORE, Reason.FIRST_START, Reason.NO_CHECKPOINT_YET, Reason.TRAINING, Reason.RESTORE_FAILED,
    Reason.POD_DELETED, Reason.SUSPENDING, Reason.RESUMED, Reason.COMPLETED,
}  # fmt: skip


def test_every_reason_is_either_waited_for_or_has_its_step() -> None:
    """A new reason must be thought about here."""
    assert set(QUIET) == WAITING


@pytest.mark.parametrize("reason", STEPS)
def test_a_step_can_be_typed(reason: Reason) -> None:
    step = next_step(reason, "team", "tiny", node="node7")
    assert step is not None
    assert "{" not in str(step).replace("'{", "").replace('":{', ""), "a placeholder is left"
    words = shlex.split(step.command)
    assert words[0] == "kubectl"
    for part in step.command.split("&&"):
        assert "--all-namespaces" in part or "describe node" in part or "-n team" in part, "the namespace is missing"
    assert str(step) == (f"{step.first}, then {step.command}" if step.first else step.command)


def test_the_default_namespace_is_not_named() -> None:
    assert str(next_step("Unschedulable", "default", "tiny")) == "kubectl describe pods -l ciuic.io/job=tiny"


def test_an_unknown_reason_of_a_newer_operator_is_no_error() -> None:
    assert next_step("SomethingNew", "team", "tiny") is None
