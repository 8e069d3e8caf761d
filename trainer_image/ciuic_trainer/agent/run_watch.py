"""Slot 0's view of the run in S3: does the store do what is needed, whose is the run, what does it hold. Used by
`runtime` from a thread, and by `uploads` before it commits.
"""

import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ciuic_api.agent_config import AgentConfig
from ciuic_api.lineage import Attempt, CheckpointId
from ciuic_api.protocol import Directive, Owner, RunState, StoreState

from .records import Damaged, in_order_of_use, merged
from .run_store import RunStore
from .store import Missing, Refused, StoreError, Unreachable

LOOKED_AT = 8
"""Sound manifests on the lineage that are told; and as many of other attempts."""
CHECKED_AT_MOST = 32
"""Manifests that are read in search of them."""
ATTEMPTS_TOLD = 32
REFUSED_TOLD, REFUSED_CHARACTERS = 8, 200


class NotOurs(Exception):
    """The run is another job's, or a later attempt's: nothing more is committed."""


@dataclass(frozen=True)
class _Checked:
    """What was found of a manifest."""

    contract: str = ""
    refused: str = ""


class RunWatch:
    def __init__(
        self, config: AgentConfig, boot: str, store: RunStore | None, say: Callable[[str], None], problem: str = ""
    ) -> None:
        """`store` is None where it can not even be opened: `problem` says why."""
        self._config = config
        self._boot = boot
        self._store = store
        self._say = say
        self._probed = False
        self._claimed = 0
        self._checked: dict[CheckpointId, _Checked] = {}
        self._checked_for = -1
        self._claiming = threading.Lock()
        self._problem = problem
        self.directive: Directive | None = None
        """The newest that was heard of the attempt that was adopted; set by the loop."""
        self._seen: RunState | None = None
        self._seen_commits = self._commits = 0
        """How many commits had been made when `_seen` was begun, and how many there are."""

    @property
    def seen(self) -> RunState | None:
        """As of the newest look. One that began before a commit tells nobody what a restore can use."""
        seen = self._seen
        if seen is None or self._seen_commits == self._commits:
            return seen
        return msgspec.structs.replace(seen, scanned_attempt=0)

    def outdate(self) -> None:
        """This agent has committed a checkpoint. Called before anybody else can know."""
        self._commits += 1

    # --- whose run it is ------------------------------------------------------------------------------------------

    def claim(self) -> bool:
        """OWNER.json names this attempt. False while nobody asked for that. Raises NotOurs."""
        directive, store = self.directive, self._store
        if directive is None or store is None or not directive.claim:
            return False
        with self._claiming:
            if self._claimed >= directive.attempt:
                return True
            other = store.claim(self._owner(directive.attempt), directive.take_over)
            if other is not None:
                whose = "a later attempt of this job" if other.uid == self._config.job_uid else f"job {other.uid}"
                raise NotOurs(f"the run belongs to {whose} ({other.namespace}/{other.name}, attempt {other.attempt})")
            self._claimed = directive.attempt
            return True

    def owns(self, attempt: int) -> bool:
        """Whether OWNER.json still names this attempt: its successor claims the run before it looks what is there."""
        return self._store is not None and self._store.owner()[0] == self._owner(attempt)

    def _owner(self, attempt: int) -> Owner:
        config = self._config
        return Owner(
            uid=config.job_uid, cluster=config.cluster, namespace=config.namespace, name=config.job, attempt=attempt
        )

    # --- what it holds --------------------------------------------------------------------------------------------

    def look(self, attempt: int) -> None:
        """Sets `seen`. The claim comes first, so that what is told of the owner is what was written."""
        commits = self._commits
        try:
            seen = self._look(attempt)
        except Unreachable as error:
            seen = RunState(store=StoreState.UNREACHABLE, message=str(error), scanned_attempt=attempt)
        except StoreError as error:
            seen = RunState(store=StoreState.REFUSED, message=str(error), scanned_attempt=attempt)
        except Exception as error:  # noqa: BLE001 - a mistake of ours must be seen on the job, not end the looking
            self._say("".join(traceback.format_exception(error)))
            seen = RunState(store=StoreState.REFUSED, message=f"internal error: {error!r}", scanned_attempt=attempt)
        if self._seen is None or (seen.store, seen.message) != (self._seen.store, self._seen.message):
            self._say(f"the store is {seen.store}{': ' if seen.message else ''}{seen.message}")
        self._seen, self._seen_commits = seen, commits

    def _look(self, attempt: int) -> RunState:
        store = self._store
        if store is None:
            raise Refused(self._problem)
        if not self._probed:
            store.probe(self._boot)
            self._probed = True
        try:
            self.claim()
        except NotOurs as error:
            self._say(str(error))
        owner, _ = store.owner()
        attempts = store.attempts()
        sound, refused, contract = self._manifests(store, attempts, attempt)
        return RunState(
            store=StoreState.OK,
            owner=owner,
            attempts=tuple(attempts[-ATTEMPTS_TOLD:]),
            manifests=tuple(sound),
            refused=tuple(_bounded(refused)),
            contract=contract,
            scanned_attempt=attempt,
            claimed_attempt=self._claimed,
        )

    def _manifests(
        self, store: RunStore, recorded: Sequence[Attempt], attempt: int
    ) -> tuple[list[CheckpointId], list[str], str]:
        """Sound ones in order of use, what is wrong with others, and the contract of the first."""
        if self._checked_for != attempt:  # what was sound for the attempt before may have been lost with it
            self._checked, self._checked_for = {}, attempt
        directive = self.directive
        attempts = merged(recorded, directive.lineage if directive is not None else ())
        tip = directive.parent if directive is not None and directive.parent is not None else _highest(attempts)
        found = store.checkpoints()
        self._checked = {checkpoint: seen for checkpoint, seen in self._checked.items() if checkpoint in set(found)}
        sound: list[CheckpointId] = []
        refused: list[str] = []
        contract = ""
        for checkpoint in in_order_of_use(found, tip, attempts)[:CHECKED_AT_MOST]:
            if len(sound) >= 2 * LOOKED_AT:
                break
            seen = self._check(store, checkpoint)
            if seen is None:
                continue
            if seen.refused:
                refused.append(f"{checkpoint}: {seen.refused}")
            else:
                sound.append(checkpoint)
                contract = contract or seen.contract
        return sound, refused, contract

    def _check(self, store: RunStore, checkpoint: CheckpointId) -> _Checked | None:
        """None: it was deleted in between."""
        known = self._checked.get(checkpoint)
        if known is not None and not known.refused:
            return known
        try:
            manifest = store.manifest(checkpoint)
            store.check_present(manifest)
            seen = _Checked(contract=manifest.contract)
        except Missing:
            return None
        except Damaged as error:
            seen = _Checked(refused=str(error))
        self._checked[checkpoint] = seen
        return seen


def _highest(attempts: Iterable[Attempt]) -> int:
    return max((link.attempt for link in attempts), default=0)


def _bounded(sentences: list[str]) -> list[str]:
    """A report has room for some."""
    told = [sentence[:REFUSED_CHARACTERS] for sentence in sentences[:REFUSED_TOLD]]
    more = len(sentences) - len(told)
    return [*told, f"and {more} more"] if more else told
