"""Which lines `logs` prints, from pods that are functions."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ciuic_cli.errors import CliError, NotFound
from ciuic_cli.logs import followed, select
from ciuic_cli.logs import recorded as recorded_lines
from ciuic_cli.snapshot import Snapshot, snapshot
from unit.cli.recordings import recorded

LOG = {
    "tiny-0-0": ["[agent] slot 0 of 2", "[rank 0] step 1", "[rank 1] step 1", "[rank 0] step 2", "[rank 10] no"],
    "tiny-1-1": ["[agent] slot 1 of 2", "[rank 2] step 1", "[rank 3] a [rank 2] b", "plain"],
}


def lines(pod: str, previous: bool = False, tail: int | None = None, follow: bool = False) -> Iterator[str]:
    if previous:
        raise NotFound("gone")
    yield from LOG[pod][-tail:] if tail else LOG[pod]


JOB = recorded("complete", spec={"ranksPerNode": 2})


def printed(rank: str, job: Snapshot = JOB, tail: int | None = None) -> list[str]:
    return list(recorded_lines(job, select(job, rank), lines, tail))


def test_one_rank() -> None:
    assert printed("0") == ["[rank 0] step 1", "[rank 0] step 2"]
    assert printed("3") == ["[rank 3] a [rank 2] b"], "the prefix decides, not what a line says"


def test_all_ranks_with_the_agents_lines() -> None:
    assert printed("all") == [
        "[slot 0] [agent] slot 0 of 2", "[rank 0] step 1", "[rank 1] step 1", "[rank 0] step 2", "[rank 10] no",
        "[slot 1] [agent] slot 1 of 2", "[rank 2] step 1", "[rank 3] a [rank 2] b", "[slot 1] plain",
    ]  # fmt: skip


def test_the_failed_rank() -> None:
    job = recorded("crash-loop")
    selection = select(job, "failed")
    assert selection.ranks == frozenset({1}) and selection.slots == frozenset({1})
    assert selection.remark.startswith("rank 1, RankFailed: rank 1 (slot 1, pod crashing-1-1")


def test_a_failure_without_a_rank_is_its_slot() -> None:
    job = recorded(
        "complete", lastFailure={"reason": "PodDeleted", "message": "gone", "slot": 1, "at": "2026-11-30T23:34:42Z"}
    )
    selection = select(job, "failed")
    assert selection.ranks is None and selection.slots == frozenset({1})


@pytest.mark.parametrize(
    ("rank", "sentence"),
    [
        ("4", "--rank is 4 but job tiny has 4 ranks; write 0 to 3, all or failed"),
        ("first", "--rank is 'first'; write a number, all or failed"),
        ("-1", "--rank is '-1'; write a number, all or failed"),
    ],
)
def test_a_wrong_rank(rank: str, sentence: str) -> None:
    with pytest.raises(CliError, match=sentence):
        select(JOB, rank)


def test_no_failure_yet() -> None:
    with pytest.raises(CliError, match="has had no failure; use --rank all"):
        select(recorded("running"), "failed")


def test_no_pod_has_started() -> None:
    with pytest.raises(CliError, match="job no-image has no pod with a log now; it is Pending, ImageUnavailable"):
        printed("all", recorded("no-image"))


def test_tail_counts_the_ranks_own_lines() -> None:
    assert printed("0", tail=1) == ["[rank 0] step 2"]
    assert printed("all", tail=1) == ["[rank 10] no", "[slot 1] plain"]
    assert printed("0", tail=0) == []


def test_tail_reads_on_when_the_servers_tail_holds_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def sparse(pod: str, previous: bool = False, tail: int | None = None) -> Iterator[str]:
        asked.append(tail)
        yield from (["[rank 1] x"] * 500 if tail else ["[rank 0] once", *["[rank 1] x"] * 500])

    assert list(recorded_lines(JOB, select(JOB, "0"), sparse, 1)) == ["[rank 0] once"]
    assert asked == [50, None]


def test_a_restarted_container_first_as_it_was() -> None:
    def two_lives(pod: str, previous: bool = False, tail: int | None = None) -> Iterator[str]:
        yield f"[rank 0] {'first' if previous else 'second'} life"

    body = recorded("complete", spec={"ranksPerNode": 2})
    pods = tuple(type(pod)(**{**vars(pod), "restarts": 1}) for pod in body.pods)
    job = type(body)(**{**vars(body), "pods": pods})
    assert list(recorded_lines(job, select(job, "0"), two_lives, None)) == [
        "[rank 0] first life",
        "[rank 0] second life",
    ]


def test_following_takes_up_the_pod_that_replaces_another() -> None:
    """The first pod's stream ends, the next look finds its successor, the job ends, and so does the following."""
    replaced = threading.Event()
    body: dict[str, Any] = {
        "metadata": {"name": "tiny", "namespace": "x"},
        "spec": {"nodes": 1, "ranksPerNode": 1},
        "status": {"state": "Running"},
    }

    def pod(incarnation: int) -> dict[str, Any]:
        labels = {"ciuic.io/slot": "0", "ciuic.io/incarnation": str(incarnation)}
        state = {"name": "trainer", "restartCount": 0, "state": {"running": {}}}
        return {
            "metadata": {"name": f"tiny-0-{incarnation}", "uid": f"uid-{incarnation}", "labels": labels},
            "status": {"phase": "Running", "containerStatuses": [state]},
        }

    def look() -> Snapshot:
        over = {"status": {"state": "Complete"}} if replaced.is_set() else {}
        return snapshot(body | over, [pod(1 if replaced.is_set() else 0)])

    def stream(name: str, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        assert follow
        yield f"[rank 0] in {name}"
        replaced.set()

    found = list(followed(look, select(look(), "0"), stream, None, wait=0.01))
    assert found == ["[rank 0] in tiny-0-0", "[rank 0] in tiny-0-1"]
