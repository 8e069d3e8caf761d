"""Planner and supervisor broken in one way each: the stories that `make check` tells must find every one of them.

A way of breaking them that no story notices is a hole in the stories, and is filled there.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed
from stories import begin, what_is_wrong

from ciuic_api.jobstatus import JobStatus
from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import AgentState, Directive, Report, StoreState
from ciuic_api.reasons import Reason
from ciuic_operator import health, planner
from ciuic_operator.health import Fault
from ciuic_operator.model import Plan, World
from ciuic_operator.planner import failing, restore, starting
from ciuic_operator.planner.restore import Choice
from ciuic_trainer.agent import supervisor
from ciuic_trainer.agent.supervisor import Adopt, Effect, Facts, Local

SEEDS = 60
"""As many as `make check` tells."""

Patch = pytest.MonkeyPatch
Choose = Callable[[JobStatus, dict[int, Report], int, bool], Choice]


def choosing(patch: Patch, broken: Callable[[Choose, JobStatus, dict[int, Report], int], Choice]) -> None:
    sound = restore.choose
    patch.setattr(starting, "choose", lambda status, reports, nodes, has_store: broken(sound, status, reports, nodes))


def dead_branches_count(patch: Patch) -> None:
    def everything(found: Iterable[CheckpointId], _tip: int, _attempts: object) -> list[CheckpointId]:
        return sorted(found, reverse=True)

    patch.setattr(restore, "on_lineage", everything)


def instead_of_waiting(patch: Patch, choice: Choice) -> None:
    def broken(sound: Choose, status: JobStatus, reports: dict[int, Report], nodes: int) -> Choice:
        chosen = sound(status, reports, nodes, True)
        return choice if chosen.verdict == "wait" else chosen

    choosing(patch, broken)


def a_store_that_is_away_means_step_0(patch: Patch) -> None:
    instead_of_waiting(patch, Choice(verdict="start", reason=Reason.NO_CHECKPOINT_YET, message=""))


def a_store_that_is_away_ends_the_job(patch: Patch) -> None:
    instead_of_waiting(patch, Choice(verdict="fail", reason=Reason.CHECKPOINTS_LOST, message=""))


def a_store_that_is_away_is_taken_for_empty(patch: Patch) -> None:
    def broken(sound: Choose, status: JobStatus, reports: dict[int, Report], nodes: int) -> Choice:
        run = reports[0].run
        assert run is not None
        return sound(status, reports | {0: changed(reports[0], run=changed(run, store=StoreState.OK))}, nodes, True)

    choosing(patch, broken)


def an_older_copy_will_do_while_the_store_is_away(patch: Patch) -> None:
    def broken(sound: Choose, status: JobStatus, reports: dict[int, Report], nodes: int) -> Choice:
        run = reports[0].run
        if run is not None and run.store is not StoreState.OK:
            status = status.model_copy(update={"last_committed": None})
        return sound(status, reports, nodes, True)

    choosing(patch, broken)


def a_copy_in_one_slot_is_enough(patch: Patch) -> None:
    def broken(sound: Choose, status: JobStatus, reports: dict[int, Report], nodes: int) -> Choice:
        held = {copy for report in reports.values() for copy in report.held}
        reports = {slot: changed(report, held=tuple(held)) for slot, report in reports.items()}
        return sound(status, reports, nodes, True)

    choosing(patch, broken)


def memory_is_not_looked_at(patch: Patch) -> None:
    def broken(sound: Choose, status: JobStatus, reports: dict[int, Report], nodes: int) -> Choice:
        return sound(status, {slot: changed(report, held=()) for slot, report in reports.items()}, nodes, True)

    choosing(patch, broken)


def step_0_is_chosen_in_silence(patch: Patch) -> None:
    def broken(sound: Choose, status: JobStatus, reports: dict[int, Report], nodes: int) -> Choice:
        chosen = sound(status, reports, nodes, True)
        if chosen.reason is Reason.NO_CHECKPOINT_YET:
            return replace(chosen, reason=Reason.RESTORING)
        return chosen

    choosing(patch, broken)


def an_old_look_at_the_run_will_do(patch: Patch) -> None:
    def broken(world: World) -> Plan | None:
        agent = world.heard[0]
        run = agent.report.run
        if run is None:
            return starting.release(world)
        run = changed(run, scanned_attempt=world.job.status.attempt)
        fresh = replace(agent, report=changed(agent.report, run=run))
        return starting.release(replace(world, agents={**world.agents, agent.pod_uid: fresh}))

    rules = tuple(broken if rule is starting.release else rule for rule in planner.RULES)
    patch.setattr(planner, "RULES", rules)


def silence_is_a_fault(patch: Patch) -> None:
    def broken(world: World) -> list[Fault]:
        silent = [slot for slot, agent in world.heard.items() if not agent.connected]
        lost = [Fault(reason=Reason.NODE_LOST, slot=slot, message=f"slot {slot} is silent") for slot in silent]
        return health.faults(world) + lost

    patch.setattr(failing, "faults", broken)


def old_ranks_live_on(patch: Patch) -> None:
    def broken(local: Local, directive: Directive, facts: Facts, now: float) -> tuple[Local, tuple[Effect, ...]]:
        local = replace(local, attempt=directive.attempt, state=AgentState.QUIESCED, since=now)
        return local, (Adopt(directive.attempt),)

    patch.setattr(supervisor, "_change_attempt", broken)


def ranks_are_started_again_after_a_restart_of_the_agent(patch: Patch) -> None:
    def broken(started: int, now: float) -> Local:
        return Local(since=now)

    patch.setattr(supervisor, "boot", broken)


@pytest.mark.parametrize(
    "broken",
    [
        dead_branches_count,
        a_store_that_is_away_means_step_0,
        a_store_that_is_away_ends_the_job,
        a_store_that_is_away_is_taken_for_empty,
        an_older_copy_will_do_while_the_store_is_away,
        a_copy_in_one_slot_is_enough,
        memory_is_not_looked_at,
        step_0_is_chosen_in_silence,
        an_old_look_at_the_run_will_do,
        silence_is_a_fault,
        old_ranks_live_on,
        ranks_are_started_again_after_a_restart_of_the_agent,
    ],
    ids=lambda broken: broken.__name__,
)
def test_a_story_finds_it(broken: Callable[[Patch], None], monkeypatch: Patch) -> None:
    broken(monkeypatch)
    wrong = next((said for seed in range(SEEDS) if (said := what_is_wrong(begin(seed))) is not None), None)
    assert wrong is not None, "no story noticed"
    print(wrong)
