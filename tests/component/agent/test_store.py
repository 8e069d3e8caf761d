"""The run's objects on a real S3 server: commits, races, damage, looking, deleting. Without an agent process."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ciuic_api.agent_config import AgentConfig
from ciuic_api.lineage import Attempt, CheckpointId
from ciuic_api.protocol import Directive, Owner, RunState, StoreState
from ciuic_trainer.agent.records import Damaged, ShardRecord
from ciuic_trainer.agent.run_store import RunStore
from ciuic_trainer.agent.run_watch import NotOurs, RunWatch
from ciuic_trainer.agent.store import PART_BYTES, Exists, Missing, Refused, Store, Unreachable
from ciuic_trainer.agent.window import Window

from .agents import JOB_UID, attempt_link
from .gateway import Gateway

WORLD = 2
PREFIX = "runs/team/tiny"


@pytest.fixture
def credentials(s3: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield


@pytest.fixture
def run(s3: Gateway, credentials: None) -> RunStore:
    return new_run(s3)


def new_run(s3: Gateway, contract: str = "contract") -> RunStore:
    return RunStore(Store(s3.config()), PREFIX, world_size=WORLD, contract=contract)


def config(s3: Gateway, uid: str = JOB_UID) -> AgentConfig:
    return AgentConfig(
        namespace="team",
        job="tiny",
        job_uid=uid,
        cluster="cluster-1",
        incarnation=0,
        nodes=WORLD,
        ranks_per_node=1,
        accelerator="cpu",
        hub_url="",
        hub_ca_pem="",
        store=s3.config(),
    )


def content(checkpoint: CheckpointId, rank: int, size_bytes: int = 1000) -> bytes:
    return (f"{checkpoint}/{rank};".encode() * size_bytes)[:size_bytes]


def put(run: RunStore, checkpoint: CheckpointId, rank: int, size_bytes: int = 1000) -> None:
    import zlib

    data = content(checkpoint, rank, size_bytes)
    record = ShardRecord(
        rank=rank, world_size=WORLD, checkpoint=checkpoint, size_bytes=len(data), crc32=zlib.crc32(data)
    )
    run.put_shard(record, Window(memoryview(data)))


def save(run: RunStore, step: int, link: Attempt, lineage: tuple[Attempt, ...] = ()) -> CheckpointId:
    checkpoint = CheckpointId(step, link.attempt)
    for rank in range(WORLD):
        put(run, checkpoint, rank)
    assert run.commit(checkpoint, (*lineage, link)) == []
    return checkpoint


def look(s3: Gateway, run: RunStore, attempt: int = 9, parent: int | None = None, **told: object) -> RunState:
    watch = RunWatch(config(s3), "boot", run, lambda text: None)
    watch.directive = Directive(attempt=attempt, run=False, slot=0, parent=parent, **told)  # type: ignore[arg-type]
    watch.look(attempt)
    assert watch.seen is not None
    return watch.seen


def file(s3: Gateway, name: str) -> Path:
    return s3.bucket_path / PREFIX / name


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


FIRST = attempt_link(1)


# --- commits ----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_exists_with_its_manifest_only(s3: Gateway, run: RunStore) -> None:
    old = save(run, 10, FIRST)
    new = CheckpointId(20, 1)
    put(run, new, 0)
    assert run.commit(new, (FIRST,)) == [1]
    put(run, new, 1)
    assert look(s3, run).manifests == (old,)  # as after a crash between the last shard and the manifest
    assert run.commit(new, (FIRST,)) == []
    assert look(s3, run).manifests == (new, old)
    assert run.commit(new, (FIRST,)) == []  # once more, as after an answer that was lost


def test_a_shard_whose_record_is_missing_is_not_there(s3: Gateway, run: RunStore) -> None:
    checkpoint = CheckpointId(10, 1)
    put(run, checkpoint, 0)
    put(run, checkpoint, 1)
    file(s3, "steps/10.a1/rank-00001.json").unlink()
    assert run.commit(checkpoint, (FIRST,)) == [1]


def test_two_attempts_of_one_number_do_not_both_commit(s3: Gateway, run: RunStore) -> None:
    save(run, 10, attempt_link(1))
    other = new_run(s3)
    checkpoint = CheckpointId(20, 1)
    put(other, checkpoint, 0)
    put(other, checkpoint, 1)
    with pytest.raises(Exists):
        other.commit(checkpoint, (attempt_link(1, parent=0, restored=CheckpointId(5, 0)),))
    assert look(s3, run).manifests == (CheckpointId(10, 1),)


def test_another_manifest_of_the_same_name_stays(s3: Gateway, run: RunStore) -> None:
    checkpoint = save(run, 10, FIRST)
    with pytest.raises(Exists):
        new_run(s3, contract="another").commit(checkpoint, (FIRST,))


def test_links_that_committed_nothing_are_recorded_too(s3: Gateway, run: RunStore) -> None:
    """Attempt 2 ended before its first checkpoint: without its record nobody knew that 3 descends from 1."""
    base = save(run, 10, FIRST)
    second, third = attempt_link(2, 1, base), attempt_link(3, 2, base)
    newest = save(run, 20, third, lineage=(FIRST, second))
    assert run.attempts() == [FIRST, second, third]
    file(s3, "manifests/20.a3.json").unlink()
    assert look(s3, new_run(s3), attempt=0).manifests == (base,)
    assert newest.attempt == 3


# --- looking ----------------------------------------------------------------------------------------------------------


def test_a_missing_shard_is_said_and_the_checkpoint_before_is_used(s3: Gateway, run: RunStore) -> None:
    old, new = save(run, 10, FIRST), save(run, 20, FIRST)
    file(s3, "steps/20.a1/rank-00001").unlink()
    seen = look(s3, run)
    assert seen.manifests == (old,)
    assert seen.refused == (f"{new}: rank-00001 is missing",)
    assert seen.contract == "contract"


def test_a_shortened_shard_is_said(s3: Gateway, run: RunStore) -> None:
    save(run, 20, FIRST)
    file(s3, "steps/20.a1/rank-00000").write_bytes(b"short")
    seen = look(s3, run)
    assert seen.manifests == ()
    assert seen.refused == ("20.a1: rank-00000 has 5 bytes instead of 1000",)


@pytest.mark.parametrize("text", [b"", b"{", b'{"checkpoint": {"step": 9, "attempt": 9}}'])
def test_a_manifest_that_can_not_be_read_is_said(s3: Gateway, run: RunStore, text: bytes) -> None:
    old, new = save(run, 10, FIRST), save(run, 20, FIRST)
    file(s3, f"manifests/{new}.json").write_bytes(text)
    seen = look(s3, run)
    assert seen.manifests == (old,)
    assert len(seen.refused) == 1 and seen.refused[0].startswith("20.a1: its manifest")


def test_what_is_no_checkpoint_is_passed_over(s3: Gateway, run: RunStore) -> None:
    new = save(run, 10, FIRST)
    for name in ("manifests/notes.txt", "manifests/x.a1.json", "attempts/readme", "attempts/old.json"):
        file(s3, name).write_text("hello")
    seen = look(s3, run)
    assert (seen.manifests, seen.refused, seen.attempts) == ((new,), (), (FIRST,))


@pytest.mark.parametrize("name", ["OWNER.json", "attempts/1.json"])
def test_a_broken_record_is_for_somebody_to_mend(s3: Gateway, run: RunStore, name: str) -> None:
    save(run, 10, FIRST)
    file(s3, name).write_text("{")
    seen = look(s3, new_run(s3))
    assert seen.store is StoreState.REFUSED
    assert name in seen.message


def test_looks_at_a_long_history_are_short(s3: Gateway, run: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[Attempt] = [FIRST]
    for number in range(2, 13):
        save(run, 10 * number - 9, links[-1], tuple(links[:-1]))
        base = save(run, 10 * number - 8, links[-1], tuple(links[:-1]))
        links.append(attempt_link(number, number - 1, base))
    calls: list[str] = []
    original = Store._call

    def counted(self: Store, name: str, **arguments: object) -> object:
        calls.append(f"{name} {arguments.get('Key', arguments.get('Prefix'))}")
        return original(self, name, **arguments)

    monkeypatch.setattr(Store, "_call", counted)
    watch = RunWatch(config(s3), "boot", new_run(s3), lambda text: None)
    watch.directive = Directive(attempt=12, run=False, slot=0, parent=11, lineage=tuple(links))
    watch.look(12)
    first, calls[:] = len(calls), []
    assert watch.seen is not None and len(watch.seen.manifests) == 16
    watch.look(12)
    assert len(calls) <= 4, calls
    assert first < 60


def test_lineage_comes_first_when_there_is_much(s3: Gateway, run: RunStore) -> None:
    base = save(run, 5, FIRST)
    dead = attempt_link(2)
    for step in range(100, 120):
        save(run, step, dead)
    seen = look(s3, run, attempt=3, parent=1, lineage=(FIRST,))
    assert seen.manifests[0] == base
    assert len(seen.manifests) == 16


# --- reading back -----------------------------------------------------------------------------------------------------


def read(run: RunStore, checkpoint: CheckpointId, rank: int) -> bytes:
    _, pieces = run.read_shard(checkpoint, rank)
    return b"".join(pieces)


@pytest.mark.parametrize("size_bytes", [0, 1, PART_BYTES, 2 * PART_BYTES + 17])
def test_shards_come_back_as_they_were(run: RunStore, size_bytes: int) -> None:
    checkpoint = CheckpointId(10, 1)
    for rank in range(WORLD):
        put(run, checkpoint, rank, size_bytes)
    run.commit(checkpoint, (FIRST,))
    for rank in range(WORLD):
        assert read(run, checkpoint, rank) == content(checkpoint, rank, size_bytes)


def test_an_altered_shard_is_found_when_it_is_read(s3: Gateway, run: RunStore) -> None:
    checkpoint = save(run, 10, FIRST)
    alter(file(s3, f"steps/{checkpoint}/rank-00001"))
    assert read(run, checkpoint, 0) == content(checkpoint, 0)
    with pytest.raises(Damaged, match="rank-00001 in S3 fails its checksum"):
        read(run, checkpoint, 1)


def test_a_shard_that_ends_early_is_found(s3: Gateway, run: RunStore) -> None:
    checkpoint = save(run, 10, FIRST)
    path = file(s3, f"steps/{checkpoint}/rank-00001")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Damaged):
        read(run, checkpoint, 1)
    path.unlink()
    with pytest.raises(Missing):
        read(run, checkpoint, 1)


def test_shards_of_another_contract_are_not_read(s3: Gateway, run: RunStore) -> None:
    checkpoint = save(run, 10, FIRST)
    with pytest.raises(Damaged, match="does not fit this job"):
        new_run(s3, contract="other").read_shard(checkpoint, 0)


# --- whose run it is --------------------------------------------------------------------------------------------------


def owner(attempt: int, uid: str = "mine") -> Owner:
    return Owner(uid=uid, cluster="cluster-1", namespace="team", name="tiny", attempt=attempt)


def test_a_claim_is_won_once(run: RunStore) -> None:
    assert run.claim(owner(1), "") is None
    assert run.claim(owner(1), "") is None
    assert run.claim(owner(3), "") is None
    assert run.claim(owner(2), "") == owner(3)  # an attempt that was left comes late
    assert run.claim(owner(4, "other"), "") == owner(3)
    assert run.claim(owner(4, "other"), "somebody") == owner(3)
    assert run.claim(owner(4, "other"), "mine") is None  # told that the former owner is dead
    assert run.owner()[0] == owner(4, "other")
    assert run.claim(owner(9), "") == owner(4, "other")


@pytest.mark.parametrize("before", [None, "dead"])
def test_of_many_claims_at_once_one_is_won(s3: Gateway, run: RunStore, before: str | None) -> None:
    if before is not None:
        run.claim(owner(1, before), "")
    stores = [new_run(s3) for _ in range(6)]
    lost: list[Owner | None] = []
    barrier = threading.Barrier(len(stores))

    def race(number: int) -> None:
        barrier.wait()
        lost.append(stores[number].claim(owner(2, f"job-{number}"), before or ""))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner, _ = run.owner()
    assert winner is not None and winner.uid.startswith("job-")
    assert lost.count(None) == 1
    assert set(lost) == {None, winner}


def test_who_stands_in_the_way_is_said(s3: Gateway, run: RunStore) -> None:
    run.claim(owner(5, "stranger"), "")
    said: list[str] = []
    watch = RunWatch(config(s3), "boot", run, said.append)
    watch.directive = Directive(attempt=6, run=False, slot=0, claim=True)
    watch.look(6)
    assert watch.seen is not None and watch.seen.owner == owner(5, "stranger")
    assert watch.seen.claimed_attempt == 0
    with pytest.raises(NotOurs, match="stranger"):
        watch.claim()
    watch.directive = msgspec.structs.replace(watch.directive, take_over="stranger")
    watch.look(6)
    assert watch.seen.claimed_attempt == 6
    assert watch.seen.owner is not None and watch.seen.owner.uid == JOB_UID


# --- deleting ---------------------------------------------------------------------------------------------------------


def test_the_newest_are_kept_and_what_was_restored(s3: Gateway, run: RunStore) -> None:
    for step in (10, 20, 30, 40):
        save(run, step, FIRST)
    second = attempt_link(2, 1, CheckpointId(20, 1))
    for step in (25, 35, 45):
        save(run, step, second, lineage=(FIRST,))
    deleted = run.retain(2, (FIRST, second), 2, lambda: True)
    assert deleted == [CheckpointId(10, 1), CheckpointId(25, 2)]
    # 30.a1 and 40.a1 are of a dead branch: not ours to judge here
    assert [name for name in s3.objects() if name.startswith("manifests/")] == [
        f"manifests/{name}.json" for name in ("20.a1", "30.a1", "35.a2", "40.a1", "45.a2")
    ]
    assert not [name for name in s3.objects() if name.startswith(("steps/10.a1", "steps/25.a2"))]


def test_a_restored_checkpoint_that_only_the_operator_knows_of_is_kept(s3: Gateway, run: RunStore) -> None:
    for step in (10, 20, 30, 40):
        save(run, step, FIRST)
    told = attempt_link(2, 1, CheckpointId(10, 1))
    assert run.retain(1, (FIRST, told), 2, lambda: True) == [CheckpointId(20, 1)]


def test_a_manifest_goes_before_its_shards(s3: Gateway, run: RunStore) -> None:
    for step in (10, 20, 30):
        save(run, step, FIRST)
    answers = iter([True, False])
    assert run.retain(1, (FIRST,), 2, lambda: next(answers)) == []
    assert "manifests/10.a1.json" not in s3.objects()
    assert "steps/10.a1/rank-00000" in s3.objects()
    assert look(s3, run).refused == ()


def test_nothing_is_deleted_without_leave(s3: Gateway, run: RunStore) -> None:
    for step in (10, 20, 30):
        save(run, step, FIRST)
    before = s3.objects()
    assert run.retain(1, (FIRST,), 2, lambda: False) == []
    assert s3.objects() == before


# --- what the store is ------------------------------------------------------------------------------------------------


def test_the_probe_leaves_nothing(s3: Gateway, run: RunStore) -> None:
    run.probe("nonce")
    assert s3.objects() == []


class Forgetful(Store):
    """A store without conditional writes, as some are."""

    ignored = ""

    def put(self, key: str, data: bytes, *, new: bool = False, etag: str | None = None) -> str:
        new, etag = new and self.ignored != "new", None if self.ignored == "etag" else etag
        return super().put(key, data, new=new, etag=etag)


@pytest.mark.parametrize(("ignored", "named"), [("new", "If-None-Match"), ("etag", "If-Match")])
def test_a_store_that_ignores_conditions_is_refused(s3: Gateway, credentials: None, ignored: str, named: str) -> None:
    store = Forgetful(s3.config())
    store.ignored = ignored
    with pytest.raises(Refused, match=named):
        RunStore(store, PREFIX, world_size=WORLD, contract="").probe("nonce")
    assert s3.objects() == []


@pytest.mark.parametrize(
    ("problem", "state", "words"),
    [
        ("key", StoreState.REFUSED, "AWS_SECRET_ACCESS_KEY"),
        ("secret", StoreState.REFUSED, "AWS_SECRET_ACCESS_KEY"),
        ("none", StoreState.REFUSED, "checkpoint.secretName"),
        ("bucket", StoreState.REFUSED, "does not exist: create it"),
        ("name", StoreState.REFUSED, "no place for checkpoints"),
        ("endpoint", StoreState.REFUSED, "can not be used"),
        ("down", StoreState.UNREACHABLE, "does not answer"),
        ("silent", StoreState.UNREACHABLE, "does not answer"),
    ],
)
def test_what_is_wrong_with_the_store_is_said(
    s3: Gateway, credentials: None, monkeypatch: pytest.MonkeyPatch, problem: str, state: StoreState, words: str
) -> None:
    mute = socket.create_server(("127.0.0.1", 0))  # takes the connection and says nothing
    changes: dict[str, dict[str, Any]] = {
        "bucket": {"bucket": "nowhere"},
        "name": {"bucket": "No/Bucket"},
        "endpoint": {"endpoint": "not a url"},
        "silent": {"endpoint": f"http://127.0.0.1:{mute.getsockname()[1]}"},
    }
    if problem == "none":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("HOME", os.devnull)
    if problem in ("key", "secret"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID" if problem == "key" else "AWS_SECRET_ACCESS_KEY", "wrong")
    if problem == "down":
        s3.stop()
    began = time.monotonic()
    run, why = None, ""
    try:
        run = RunStore(Store(s3.config(**changes.get(problem, {}))), PREFIX, world_size=WORLD, contract="")
    except Refused as error:
        why = str(error)
    watch = RunWatch(config(s3), "boot", run, lambda text: None, why)
    watch.directive = Directive(attempt=1, run=False, slot=0, claim=True)
    watch.look(1)
    assert watch.seen is not None
    assert (watch.seen.store, watch.seen.scanned_attempt) == (state, 1)
    assert words in watch.seen.message
    assert time.monotonic() - began < 15.0


def test_an_upload_in_parts_to_a_store_that_is_gone_says_so(s3: Gateway, run: RunStore) -> None:
    s3.stop()
    with pytest.raises(Unreachable):
        put(run, CheckpointId(10, 1), 0, 3 * PART_BYTES)
