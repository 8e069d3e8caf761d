"""The accounts of a job: stories in virtual time through the planner, and the arithmetic alone."""

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from builders import (
    NOW,
    PODS,
    AgentFailure,
    AgentState,
    JobStatus,
    State,
    checkpoint,
    ended,
    job,
    pod,
    quiet,
    replace,
    report,
    run_state,
    status,
    trains,
    world,
)
from ciuic_api.accounts import Account, Mark, Stages
from ciuic_api.jobstatus import LedgerEntry, LineageLink
from ciuic_api.protocol import RankState, Report
from ciuic_operator import account as accounts
from ciuic_operator import planner
from ciuic_operator.account import CELL, HOUR, ettr, ettr_last_hour, opened, rolled_back, stepped
from ciuic_operator.model import Plan, Pod

SECOND = 1000


@dataclass
class Job:
    """A job whose status lives on from look to look. Its ranks have just been told to run for the first time."""

    status: JobStatus = field(default_factory=lambda: status(State.STARTING))
    suspend: bool = False
    watchdog: bool = True

    def at(
        self, seconds: float, *reports: Report, pods: tuple[Pod, ...] = PODS, heard_seconds_ago: float = 0.0
    ) -> Plan:
        of = job(self.status, self.watchdog, runPolicy={"suspend": self.suspend})
        seen = world(of, pods, dict(enumerate(reports)))
        agents = {uid: replace(agent, heard_seconds_ago=heard_seconds_ago) for uid, agent in seen.agents.items()}
        plan = planner.plan(replace(seen, now=NOW + timedelta(seconds=seconds), agents=agents))
        # As the API server gives it back: everything there is must live through JSON.
        self.status = JobStatus.model_validate(plan.status.to_json())
        return plan

    def trains(self, seconds: float, step: int, attempt: int = 1) -> Plan:
        return self.at(seconds, trains(0, attempt, step), trains(1, attempt, step))

    def fails(self, seconds: float, step: int, attempt: int = 1, ago: float = 0.5) -> Plan:
        why = AgentFailure(reason="RankExited", message="", rank=1, fingerprint=f"at {seconds}", at_seconds_ago=ago)
        return self.at(seconds, trains(0, attempt, step), ended(1, -9, attempt, step, failure=why))

    def is_let_go(
        self, seconds: float, attempt: int, step: int, of: int = 1, tier: str = "memory", pods: tuple[Pod, ...] = PODS
    ) -> Plan:
        held = (checkpoint(step, of),) if tier == "memory" else ()
        run = run_state(attempt, manifests=() if tier == "memory" else (checkpoint(step, of),))
        return self.at(seconds, quiet(0, attempt, run=run, held=held), quiet(1, attempt, held=held), pods=pods)

    def entry(self) -> LedgerEntry:
        return self.status.ledger[-1]


def trained() -> Job:
    """Let go at 0, the first step after 20 s, then one step in 10 s until step 9 at 100 s."""
    one = Job()
    one.at(0, quiet(0, 1), quiet(1, 1))
    for step in range(1, 10):
        one.trains(10 + 10 * step, step)
    return one


def test_starting_is_lost_and_training_is_kept() -> None:
    one = Job()
    one.at(0, quiet(0, 1), quiet(1, 1))
    assert one.status.ettr is None
    one.at(10, quiet(0, 1), quiet(1, 1))
    assert one.status.ettr == "0.000"
    one = trained()
    assert (one.status.ettr, one.status.ettr_last_hour, one.status.lost_steps) == ("0.800", "0.800", 0)


def test_a_step_that_takes_long_is_not_called_lost() -> None:
    one = trained()
    one.trains(104, 9)
    assert one.status.ettr == "0.800"
    one.trains(200, 10)
    assert one.status.ettr == "0.900"


def test_a_crash_and_a_restore_from_memory() -> None:
    """Steps 8 and 9 are lost, and the time until a step is completed again."""
    one = trained()
    plan = one.fails(103, 9, ago=2.0)
    assert plan.urgent and one.status.attempt == 2
    assert one.status.ettr == "0.776"  # 80 of 103 s
    plan = one.at(104, quiet(0, 2), report(1, 2, AgentState.KILLING))
    assert one.entry().stages == Stages(detect=2000, decide=0)
    plan = one.is_let_go(105, 2, 7)
    assert (one.entry().lost_steps, one.entry().tier, one.status.lost_steps) == (2, "memory", 2)
    assert one.status.ettr == "0.571"  # 60 of 105 s: steps 8 and 9 took 20
    plan = one.at(106, report(0, 2, AgentState.RESTORING), report(1, 2, AgentState.RESTORING))
    assert not plan.urgent
    loading = [trains(slot, 2, ranks=(RankState(rank=slot, phase="init"),)) for slot in (0, 1)]
    assert one.at(108, *loading).urgent, "a stage that ended is written at once"
    one.at(113, *(trains(slot, 2, ranks=(RankState(rank=slot, phase="compile"),)) for slot in (0, 1)))
    assert one.status.state is State.RESTARTING and not one.entry().recovered
    one.trains(115, 8, attempt=2)
    stages = Stages(detect=2000, decide=0, kill=2000, pods=0, restore=3000, start=5000, first_step=2000)
    assert one.entry().stages == stages and one.entry().recovered
    one.trains(125, 9, attempt=2)
    assert one.status.ettr == "0.560"  # 70 of 125 s
    assert (one.entry().slot, one.entry().rank, one.entry().node, one.entry().attempt) == (1, 1, "node1", 1)
    failure = one.status.last_failure
    assert failure is not None and failure.detected_seconds == 2


def test_the_first_step_of_all_ranks_is_written_at_once() -> None:
    """Time is kept from there on; a slower write would lose what lies between."""
    one = trained()
    one.fails(103, 9)
    one.is_let_go(105, 2, 7)
    assert one.at(115, trains(0, 2, 8), trains(1, 2, 7)).status.state is State.RUNNING
    assert one.trains(116, 8, attempt=2).urgent
    assert not one.trains(126, 9, attempt=2).urgent


def test_a_restore_from_s3_costs_the_steps_since_its_checkpoint() -> None:
    one = trained()
    one.fails(100, 9)
    one.is_let_go(110, 2, 3, tier="s3")
    assert (one.entry().lost_steps, one.entry().tier, one.status.lost_steps) == (6, "s3", 6)
    assert one.status.ettr == "0.181"  # steps 2 and 3: 20 of 110 s
    one.trains(120, 4, attempt=2)
    one.trains(180, 10, attempt=2)
    assert one.status.ettr == "0.444"  # and 60 s since: 80 of 180 s


def test_a_start_at_step_0_keeps_nothing() -> None:
    one = trained()
    one.fails(100, 9)
    one.at(110, quiet(0, 2), quiet(1, 2))
    assert (one.entry().lost_steps, one.entry().tier, one.status.ettr) == (9, "none", "0.000")


def test_work_that_is_lost_twice_is_counted_once_in_time_and_twice_in_steps() -> None:
    one = trained()
    one.fails(100, 9)
    one.is_let_go(110, 2, 7)
    one.trains(120, 8, attempt=2)
    one.trains(130, 9, attempt=2)
    one.fails(130, 9, attempt=2, ago=0.0)
    one.is_let_go(140, 3, 7)
    assert (one.entry().lost_steps, one.status.lost_steps) == (2, 4)
    assert one.status.ettr == "0.428"  # still the 60 s until step 7, now of 140


def test_a_crash_during_the_recovery() -> None:
    """The first failure stays as it was when the second came; nothing was kept in between."""
    one = trained()
    one.fails(100, 9)
    one.is_let_go(110, 2, 8)
    one.fails(120, 0, attempt=2)
    first, second = one.status.ledger
    assert not first.recovered and first.stages is not None
    assert (first.stages.pods, first.stages.restore, first.lost_steps) == (0, None, 1)
    one.is_let_go(130, 3, 8)
    one.trains(140, 9, attempt=3)
    first, second = one.status.ledger
    assert not first.recovered and second.recovered and (first.lost_steps, second.lost_steps) == (1, 0)
    assert one.status.ettr == "0.500"  # 70 of 140 s


def test_a_suspension_does_not_count() -> None:
    one = trained()
    one.suspend = True
    one.trains(100, 9)
    one.at(100, pods=())
    assert one.status.state is State.SUSPENDED
    one.at(5000, pods=())
    assert one.status.ettr == "0.800"
    one.suspend = False
    assert one.at(5100, pods=()).status.state is State.PENDING
    one.is_let_go(5200, 2, 9)
    assert one.status.ettr == "0.800" and one.status.lost_steps == 0
    one.trains(5220, 10, attempt=2)
    assert one.status.ettr == "0.666"  # the start after it counts: 80 of 120 s
    one.trains(5300, 18, attempt=2)
    assert one.status.ettr == "0.800"


def test_a_failure_before_a_suspension_is_not_recovered_by_what_comes_after() -> None:
    one = trained()
    one.fails(100, 9)
    one.suspend = True
    one.at(101, pods=())
    one.suspend = False
    one.at(9000, pods=())
    one.is_let_go(9100, 3, 8)
    one.trains(9120, 9, attempt=3)
    assert not one.entry().recovered and one.entry().stages == Stages(detect=500, decide=0, kill=1000)
    assert one.status.lost_steps == 1


def test_an_operator_that_was_away() -> None:
    """What trained on without it is kept; a failure that it comes back to began when the agent says it did."""
    one = trained()
    one.trains(700, 69)
    assert one.status.ettr == "0.971"  # 680 of 700 s
    one.fails(1000, 79, ago=200.0)
    assert one.entry().failed_at == accounts.moment(NOW + timedelta(seconds=800))
    assert one.entry().stages == Stages(detect=200_000, decide=0)
    assert one.status.account is not None and one.status.account.marks[-1] == Mark(step=79, at=800_000, kept=780_000)


def test_an_operator_that_comes_back_to_silence_changes_nothing() -> None:
    one = trained()
    before = one.status
    one.at(110)
    assert (one.status.account, one.status.ettr) == (before.account, before.ettr)


def test_a_job_of_an_older_operator_begins_its_account_where_it_is() -> None:
    one = Job(status())
    one.trains(0, 500)
    one.trains(10, 501)
    one.trains(20, 502)
    assert one.status.account is not None and one.status.account.marks[0] == Mark(step=500, at=0, kept=0)
    assert (one.status.ettr, one.status.lost_steps) == ("0.500", 0)


def test_a_hang_is_dated_back_to_the_last_movement() -> None:
    one = Job()
    one.at(0, quiet(0, 1), quiet(1, 1))
    for step in range(1, 10):
        one.trains(10 * step, step)
    still = [trains(s, ranks=(RankState(rank=s, phase="step", step=9, unmoved_seconds=2000.0),)) for s in (0, 1)]
    one.at(2090, *still)
    assert one.status.evidence_since is not None and one.status.attempt == 1
    still = [trains(s, ranks=(RankState(rank=s, phase="step", step=9, unmoved_seconds=2011.0),)) for s in (0, 1)]
    one.at(2101, *still)
    assert one.status.attempt == 2 and one.entry().stages == Stages(detect=2_000_000, decide=11_000)


def test_a_script_has_stages_and_no_share() -> None:
    one = status(State.STARTING)
    seen = world(job(one, command=("python", "train.py")), PODS, {0: trains(0, step=0), 1: trains(1, step=0)})
    assert planner.plan(seen).status.ettr is None


@pytest.mark.parametrize(("code", "state"), [(0, State.COMPLETE), (-9, State.FAILED)])
def test_a_job_that_is_over_changes_no_more(code: int, state: State) -> None:
    one = trained()
    one.watchdog = False
    done = [ended(slot, code, step=100, uploads_done=True) for slot in (0, 1)]
    one.at(1100, *done)
    final = (one.status.state, one.status.account, one.status.ettr)
    one.at(9000, *done)
    assert (one.status.state, one.status.account, one.status.ettr) == final and final[0] is state


def test_the_first_of_several_faults_dates_them_all() -> None:
    """A lost pod is the cause; that its peer's rank had ended a while before says since when nothing was done."""
    one = trained()
    why = AgentFailure(reason="RankExited", message="", rank=0, fingerprint="k", at_seconds_ago=30.0)
    broken = ended(0, 1, step=9, failure=why)
    one.at(140, broken, pods=(pod(0), pod(1, phase="Failed")), heard_seconds_ago=2.0)
    assert one.entry().reason == "PodFailed" and one.entry().stages == Stages(detect=32_000, decide=0)
    two = trained()
    two.at(140, broken, trains(1, step=9), heard_seconds_ago=2.0)
    assert two.entry().reason == "RankFailed" and two.entry().stages == Stages(detect=30_000, decide=2000)


def test_the_status_of_a_job_that_failed_much_stays_small() -> None:
    one = trained()
    step, now, attempt = 9, 100.0, 1
    for _ in range(12):
        for _ in range(400):
            step, now = step + 1, now + 10
            one.trains(now, step, attempt)
        one.fails(now, step, attempt)
        attempt += 1
        one.is_let_go(now + 5, attempt, step - 1, of=attempt - 1)
        step, now = step - 1, now + 10
    text = one.status.model_dump_json(by_alias=True, exclude_none=True)
    assert len(one.status.ledger) == 8 and len(text) < 10_000, f"{len(text)} bytes"


# ---- the arithmetic alone


def steady(until: int, every: int = 10 * SECOND) -> Account:
    """Steps of equal length without any loss."""
    one = stepped(opened(NOW, 0), 1, 0, NOW)
    for number in range(1, until // every + 1):
        one = stepped(one, 1, number, NOW + timedelta(milliseconds=number * every))
    return one


def test_marks_are_few_and_the_last_hour_is_among_them() -> None:
    one = steady(10 * HOUR)
    assert len(one.marks) <= 20 and one.marks[0] == Mark(step=0, at=0, kept=0)
    assert all(later.at - earlier.at <= CELL for earlier, later in zip(one.marks[2:], one.marks[3:], strict=False))


@pytest.mark.parametrize("back", [1, 2, 30, 359, 720, 3000])
def test_a_roll_back_finds_the_moment_of_its_step(back: int) -> None:
    """Of steady steps to the step, however few marks are left."""
    one = steady(10 * HOUR)
    tip = one.marks[-1]
    assert rolled_back(one, tip.step - back).marks[-1].kept == tip.kept - 10 * SECOND * back


def test_the_last_hour_forgets_what_came_before() -> None:
    one = steady(HOUR)
    one = stepped(one, 2, 361, NOW + timedelta(hours=2))  # an hour of recovery
    assert (ettr(one, 2 * HOUR), ettr_last_hour(one, 2 * HOUR)) == ("0.498", "0.000")
    for number in range(1, 361):
        one = stepped(one, 2, 361 + number, NOW + timedelta(hours=2, seconds=10 * number))
    assert ettr_last_hour(one, 3 * HOUR) == "1.000"


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    one = steady(HOUR)
    later = stepped(one, 1, 1000, NOW)
    assert later.marks[-1] == replace_mark(one.marks[-1], step=1000)


def replace_mark(mark: Mark, step: int) -> Mark:
    return mark.model_copy(update={"step": step})


def test_a_lineage_that_came_from_another_job_is_not_its_account() -> None:
    one = opened(NOW, 500)
    one = stepped(one, 1, 501, NOW + timedelta(seconds=10))
    back = rolled_back(one, 400)
    assert (accounts.lost_steps(one, 400), back.marks[-1]) == (101, Mark(step=400, at=10_000, kept=0))


def test_the_lineage_is_not_asked() -> None:
    """The account stands on what was let go alone: links that were dropped from the status do not matter."""
    one = trained()
    one.status = one.status.model_copy(update={"lineage": (LineageLink(attempt=1),)})
    one.trains(110, 10)
    assert one.status.ettr == "0.818"


def test_pods_that_are_made_anew_are_a_stage() -> None:
    one = trained()
    one.at(100, trains(0, 1, 9), pods=(pod(0), pod(1, phase="Failed", exit_message="gone")))
    assert one.status.attempt == 2 and one.entry().reason == "PodFailed"
    one.at(101, quiet(0, 2), pods=(pod(0), pod(1, phase="Failed")))
    one.is_let_go(109, 2, 8, pods=(pod(0), pod(1, 2)))
    assert one.entry().stages == Stages(detect=0, decide=0, kill=1000, pods=8000)
