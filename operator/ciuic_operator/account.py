"""How the share of a job's time that ended up in its model is reckoned. Pure, and of times and steps alone; used by the planner.

The account has a clock that only steps of the lineage drive. While an attempt trains, the time from one completed step
to the next is kept. Until an attempt has completed its first step nothing is: starting and recovering are lost. When a
checkpoint is restored the clock goes back to where it stood when that step was completed, so that work done twice is
counted once. ETTR is that clock's time by the wall's.
"""

from datetime import UTC, datetime

from ciuic_api.accounts import Account, Mark

HOUR = 3_600_000
CELL = 600_000
"""Within the last hour two marks are kept of each stretch of so many milliseconds, the first and the last."""
CELLS_KEPT = 7
OLDEST_KEPT = 2
"""The start and the first step after it: from there on time went into steps."""
NEWEST_KEPT = 4


def moment(time: datetime) -> str:
    """RFC 3339 with milliseconds."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"


def parse_moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


def milliseconds_since(text: str, now: datetime) -> int:
    """Of a `moment`; never less than 0, whatever the clocks of two operators say."""
    return max(0, round((now - parse_moment(text)).total_seconds() * 1000))


def opened(now: datetime, step: int) -> Account:
    """Of a job whose ranks are let go for the first time, at `step`."""
    return Account(since=moment(now), marks=(Mark(step=step, at=0, kept=0),))


def clock(account: Account, now: datetime) -> int:
    """Milliseconds of the account at `now`: suspensions do not count."""
    end = parse_moment(account.suspended_since) if account.suspended_since is not None else now
    return max(milliseconds_since(account.since, end) - account.suspended, account.marks[-1].at)


def suspended(account: Account, now: datetime) -> Account:
    if account.suspended_since is not None:
        return account
    return account.model_copy(update={"suspended_since": moment(now)})


def resumed(account: Account, now: datetime) -> Account:
    if account.suspended_since is None:
        return account
    over = milliseconds_since(account.suspended_since, now)
    return account.model_copy(update={"suspended_since": None, "suspended": account.suspended + over})


def stepped(account: Account, attempt: int, step: int, at: datetime) -> Account:
    """`step` of `attempt` is completed. The same account when it is not a new one."""
    last = account.marks[-1]
    if step <= last.step:
        return account
    now = clock(account, at)
    kept = last.kept + (now - last.at if attempt == account.attempt else 0)
    marks = _thinned((*account.marks, Mark(step=step, at=now, kept=kept)))
    return account.model_copy(update={"attempt": attempt, "marks": marks})


def rolled_back(account: Account, step: int) -> Account:
    """The ranks start again after `step`: what was kept beyond it is lost."""
    kept = _kept_at_step(account.marks, step)
    marks = tuple(
        mark.model_copy(update={"step": min(mark.step, step), "kept": min(mark.kept, kept)}) for mark in account.marks
    )
    return account.model_copy(update={"attempt": 0, "marks": marks})


def lost_steps(account: Account, step: int) -> int:
    """Steps that are done again when the ranks start after `step`."""
    return max(0, account.marks[-1].step - step)


def ettr(account: Account, at: int) -> str | None:
    """The share of all time until `at` of the account's clock, as `0.973`; None before there was any."""
    return _share(account.marks[-1].kept, at)


def ettr_last_hour(account: Account, at: int) -> str | None:
    """The same of the last hour before `at`, or of as much as there was."""
    begin = max(0, at - HOUR)
    return _share(account.marks[-1].kept - _kept_at_moment(account.marks, begin), at - begin)


def _share(kept: int, of: int) -> str | None:
    """Rounded down: only what lost nothing is 1.000."""
    return f"{1000 * kept // of / 1000:.3f}" if of > 0 else None


def _thinned(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    oldest, newest = marks[:OLDEST_KEPT], marks[OLDEST_KEPT:][-NEWEST_KEPT:]
    too_old = marks[-1].at // CELL - CELLS_KEPT
    cells: dict[int, tuple[Mark, ...]] = {}
    for mark in marks[OLDEST_KEPT:-NEWEST_KEPT]:
        cell = mark.at // CELL
        if cell > too_old:
            cells[cell] = (*cells.get(cell, ())[:1], mark)
    return (*oldest, *(mark for ends in cells.values() for mark in ends), *newest)


def _kept_at_step(marks: tuple[Mark, ...], step: int) -> int:
    return _between([(mark.step, mark.kept) for mark in marks], step)


def _kept_at_moment(marks: tuple[Mark, ...], at: int) -> int:
    return _between([(mark.at, mark.kept) for mark in marks], at)


def _between(points: list[tuple[int, int]], x: int) -> int:
    """The straight line between neighbouring points; level before the first and after the last."""
    before = points[0]
    for point in points:
        if point[0] >= x:
            run = point[0] - before[0]
            return before[1] + (point[1] - before[1]) * max(0, x - before[0]) // run if run else point[1]
        before = point
    return before[1]
