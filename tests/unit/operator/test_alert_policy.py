"""When a receiver is told: merging, spacing, patience, retries, bounds. Time is a number."""

from dataclasses import replace

import pytest

from ciuic_operator.alerts.policy import (
    BACKOFF_SECONDS,
    KEPT,
    OLD_SECONDS,
    PATIENCE_SECONDS,
    WINDOW_SECONDS,
    Batch,
    Mailbox,
)
from unit.operator.alert_samples import FAILED, RECOVERED, RESTARTING, WAITING


def attempts(batch: Batch) -> list[int]:
    return [alert.attempt for alert in batch.alerts]


def test_an_empty_mailbox_is_never_due() -> None:
    assert Mailbox().due_in(1e9) is None


def test_what_follows_at_once_comes_in_one_message() -> None:
    box = Mailbox()
    box.put(RESTARTING, 100.0)
    box.put(RECOVERED, 103.0)
    assert box.due_in(103.0) == WINDOW_SECONDS - 3 and box.due_in(105.0) == 0.0
    batch = box.take(105.0)
    assert batch.alerts == (RESTARTING, RECOVERED) and batch.dropped == 0
    box.sent(batch, 105.0)
    assert box.due_in(105.0) is None


def test_never_more_than_the_robots_take() -> None:
    """WeCom and DingTalk: 20 a minute."""
    box, now, sent = Mailbox(), 0.0, []
    while now < 600.0:
        box.put(RESTARTING, now)
        if box.due_in(now) == 0.0:
            sent.append(now)
            box.sent(box.take(now), now)
        now += 0.25
    for begin in sent:
        assert sum(begin <= moment < begin + 60.0 for moment in sent) <= 20
    assert len(sent) > 100, "and they are sent"


class TestPatience:
    def test_a_wait_that_passes_is_never_told(self) -> None:
        box = Mailbox()
        box.put(WAITING, 0.0)
        assert box.due_in(0.0) == PATIENCE_SECONDS
        box.withdraw(WAITING.job_uid)
        assert box.due_in(PATIENCE_SECONDS) is None and box.dropped == 0

    def test_a_wait_that_lasts_is(self) -> None:
        box = Mailbox()
        box.put(WAITING, 0.0)
        box.withdraw("another job")
        assert box.due_in(PATIENCE_SECONDS) == 0.0 and box.take(PATIENCE_SECONDS).alerts == (WAITING,)

    def test_other_messages_do_not_take_it_along(self) -> None:
        box = Mailbox()
        box.put(WAITING, 0.0)
        box.put(RESTARTING, 1.0)
        assert box.take(1.0 + WINDOW_SECONDS).alerts == (RESTARTING,)
        box.withdraw(WAITING.job_uid)
        assert box.due_in(99.0) is None

    def test_what_is_no_wait_is_not_withdrawn(self) -> None:
        box = Mailbox()
        box.put(FAILED, 0.0)
        box.withdraw(FAILED.job_uid)
        assert box.take(5.0).alerts == (FAILED,)


class TestFailures:
    def test_backoff_grows_to_its_limit_and_ends_with_success(self) -> None:
        box, now, waits = Mailbox(), 0.0, []
        box.put(RESTARTING, now)
        for _ in range(10):
            now += box.due_in(now) or 0.0
            box.failed(box.take(now), now)
            waits.append(box.due_in(now))
        assert waits[:4] == [5.0, 10.0, 20.0, 40.0] and waits[-1] == BACKOFF_SECONDS[1]
        now += BACKOFF_SECONDS[1]
        box.sent(box.take(now), now)
        box.put(RECOVERED, now)
        assert box.due_in(now) == WINDOW_SECONDS
        now += WINDOW_SECONDS
        box.failed(box.take(now), now)
        assert box.due_in(now) == BACKOFF_SECONDS[0]

    def test_what_failed_is_told_with_what_came_meanwhile(self) -> None:
        box = Mailbox()
        box.put(RESTARTING, 0.0)
        batch = box.take(5.0)
        box.put(RECOVERED, 6.0)
        box.failed(batch, 7.0)
        assert box.take(20.0).alerts == (RESTARTING, RECOVERED)

    def test_the_server_may_ask_for_more_time_but_not_for_ever(self) -> None:
        for asked, given in ((90.0, 90.0), (1.0, 5.0), (1e9, OLD_SECONDS)):
            box = Mailbox()
            box.put(RESTARTING, 0.0)
            box.failed(box.take(5.0), 5.0, asked)
            assert box.due_in(5.0) == given

    def test_what_is_refused_is_dropped_and_said(self) -> None:
        box = Mailbox()
        box.put(RESTARTING, 0.0)
        box.refused(box.take(5.0), 5.0)
        assert box.due_in(5.0) is None and box.dropped == 1
        box.put(RECOVERED, 6.0)
        assert box.due_in(6.0) == WINDOW_SECONDS
        batch = box.take(11.0)
        assert batch.dropped == 1
        box.failed(batch, 11.0)
        again = box.take(21.0)
        assert again.dropped == 1, "it is said until it was heard"
        box.sent(again, 21.0)
        box.put(RECOVERED, 30.0)
        assert box.take(35.0).dropped == 0


class TestBounds:
    def test_the_oldest_make_room(self) -> None:
        box = Mailbox()
        for number in range(KEPT + 30):
            box.put(replace(RESTARTING, attempt=number), 0.0)
        batch = box.take(5.0)
        assert attempts(batch) == list(range(30, KEPT + 30)) and batch.dropped == box.dropped == 30

    def test_also_when_a_message_comes_back(self) -> None:
        box = Mailbox()
        for number in range(KEPT):
            box.put(replace(RESTARTING, attempt=number), 0.0)
        batch = box.take(5.0)
        for number in range(KEPT, 2 * KEPT):
            box.put(replace(RESTARTING, attempt=number), 6.0)
        box.failed(batch, 7.0)
        again = box.take(20.0)
        assert attempts(again) == list(range(KEPT, 2 * KEPT)) and again.dropped == KEPT

    @pytest.mark.parametrize(("age", "told"), [(OLD_SECONDS, 1), (OLD_SECONDS + 1, 0)])
    def test_what_is_old_is_dropped(self, age: float, told: int) -> None:
        box = Mailbox()
        box.put(RESTARTING, 0.0)
        batch = box.take(age)
        assert len(batch.entries) == told and box.dropped == 1 - told
