"""What `history` shows, rendered without colour."""

import copy
from typing import Any

import pytest
from rich.console import Console

from ciuic_cli.history import ettr, history_view, totals
from unit.cli.recordings import NAMES, load, recorded
from unit.cli.test_view import shown

STAGES = {"detect": 500, "decide": 0, "kill": 1040, "pods": 0, "restore": 250, "start": 4000, "firstStep": 2000}
RECOVERED = {
    "at": "2026-11-30T23:34:43Z",
    "failedAt": "2026-11-30T23:34:42.500Z",
    "reason": "RankKilled",
    "fingerprint": "k",
    "counted": True,
    "step": 56,
    "slot": 1,
    "rank": 1,
    "node": "node1",
    "attempt": 1,
    "restored": {"step": 55, "attempt": 1},
    "tier": "memory",
    "lostSteps": 1,
    "stages": STAGES,
    "recovered": True,
}
UNDER_WAY = {
    "at": "2026-11-30T23:35:00Z",
    "reason": "NodeLost",
    "fingerprint": "n",
    "counted": False,
    "step": 90,
    "slot": 0,
    "node": "node0",
    "attempt": 2,
    "stages": {"detect": 0, "decide": 0, "kill": 1200},
    "recovered": False,
}


def lines(width: int = 120, **status: Any) -> list[str]:
    job = copy.deepcopy(load("complete")["job"])
    job["status"].update({"attempt": 3, "state": "Restarting"} | status)
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(history_view(job), crop=False)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_failures_their_stages_and_the_totals() -> None:
    restarts = {"total": 2, "software": 1, "disruption": 1}
    text = lines(ledger=[RECOVERED, UNDER_WAY], restarts=restarts, lostSteps=1201, ettr="0.973", ettrLastHour="0.9")
    assert text == [
        "tiny  its 2 failures",
        "",
        "#  WHEN (UTC)           REASON      CLASS       WHO            THEN                   LOST",
        "1  2026-11-30 23:34:42  RankKilled  software    rank 1, node1  from step 55 (memory)     1",
        "2  2026-11-30 23:35:00  NodeLost    disruption  slot 0, node0  under way                 -",
        "",
        "seconds of each recovery",
        "#  DETECT  DECIDE  KILL  PODS  RESTORE  START  FIRST STEP  ALL",
        "1     0.5     0.0   1.0   0.0      0.2    4.0         2.0  7.8",
        "2     0.0     0.0   1.2     -        -      -           -    -",
        "",
        "restarts 2 (1 after failures, 1 after disruptions)  ·  1,201 steps lost  ·  ETTR 97.3 % (last hour 90.0 %)",
    ]


@pytest.mark.parametrize(
    ("entry", "status", "then"),
    [
        (RECOVERED | {"restored": None, "tier": "none"}, {}, "from step 0"),
        (RECOVERED | {"recovered": False, "attempt": 2}, {}, "from step 55 (memory), under way"),
        (RECOVERED | {"recovered": False, "attempt": 1}, {}, "from step 55 (memory), cut short"),
        (RECOVERED | {"recovered": False, "attempt": 2}, {"state": "Failed"}, "from step 55 (memory), cut short"),
        (UNDER_WAY | {"attempt": 3}, {"state": "Failed"}, "not restarted"),
        (RECOVERED | {"stages": None}, {}, "-"),
    ],
)
def test_what_was_done(entry: dict[str, Any], status: dict[str, Any], then: str) -> None:
    row = next(line for line in lines(**{"ledger": [entry], **status}) if line.startswith("1 "))
    assert row.split("node")[1][1:].strip().startswith(then + "  ")


def test_older_failures_are_said_to_be_missing() -> None:
    assert lines(ledger=[RECOVERED], restarts={"total": 12})[0] == "tiny  the newest failure"


@pytest.mark.parametrize("name", NAMES)
def test_jobs_of_an_older_operator(name: str) -> None:
    job = load(name)["job"]
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(history_view(job))
    text = capture.get()
    assert ("nothing has failed" in text) == (not job["status"].get("ledger"))
    assert totals(job["status"]) in " ".join(text.split("\n"))


def test_status_shows_the_share() -> None:
    text = shown(recorded("complete", ettr="0.973", ettrLastHour="1.000", lostSteps=7))
    assert "ETTR         97.3 % (last hour 100.0 %), 7 steps lost" in text
    assert "ETTR" not in shown(recorded("complete"))


def test_the_share_as_people_want_it() -> None:
    assert (ettr(None, None), ettr("0.5", None)) == ("", "50.0 %")
