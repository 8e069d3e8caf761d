"""An alert as a person reads it, in one of two languages. Pure; used by `formats`, which only add their markup.

The message of the operator itself stays as it is, in English: it quotes programs, and people search for such words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ciuic_api.alerting import AlertKind
from ciuic_api.nextsteps import Step, next_step
from ciuic_api.reasons import Reason

from .model import Alert, Severity


@dataclass(frozen=True, kw_only=True)
class Words:
    """One language. Texts in braces are filled by `told`."""

    headlines: Mapping[AlertKind, str]
    over: Mapping[AlertKind, str]
    """Headlines of what has ended."""
    done: Mapping[AlertKind, str]
    """What the operator did or does."""
    what: str
    where: str
    slot: str
    rank: str
    node: str
    joined: str
    """Between slot, rank and node."""
    did: str
    took: str
    recovered_in: str
    ran_for: str
    cost: str
    lost: str
    unsafe: str
    """Steps that only the pods' memory may still hold."""
    nothing_lost: str
    evidence: str
    details: str
    next: str
    then: str
    """Between what has to be done first and the command."""
    many: str
    more: str
    dropped: str
    meanings: Mapping[Reason, str]
    first: Mapping[Reason, str]
    """What has to be done before the command, where there is such a thing."""

    def meaning(self, reason: str) -> str:
        return next((text for known, text in self.meanings.items() if known == reason), "")


@dataclass(frozen=True, kw_only=True)
class Told:
    """Plain text in parts. Nothing is escaped yet."""

    severity: Severity
    headline: str
    lines: tuple[tuple[str, str], ...] = ()
    """Label and text."""
    details: tuple[str, str] | None = None
    """Label and text: the longest part, the first to be shortened."""
    next: tuple[str, str, str] | None = None
    """Label, what has to be done first, and the command to type."""

    def brief(self) -> "Told":
        return replace(self, lines=(), details=None, next=None)


def told(alert: Alert, words: Words) -> Told:
    name = f"{alert.namespace}/{alert.job}"
    headline = (words.over if alert.over else words.headlines)[alert.kind]
    return Told(
        severity=alert.severity,
        headline=headline.format(job=name, reason=alert.reason, took=span(alert.seconds or 0)),
        lines=tuple(_lines(alert, words)),
        details=(words.details, alert.message) if alert.message else None,
        next=(words.next, *_next(alert, words)),
    )


def _lines(alert: Alert, words: Words) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    meaning = words.meaning(alert.reason)
    if meaning and alert.kind not in (AlertKind.COMPLETE, AlertKind.NO_CHECKPOINT_YET):
        lines.append((words.what, f"{alert.reason}: {meaning}"))
    places = ((words.slot, alert.slot), (words.rank, alert.rank), (words.node, alert.node))
    where = words.joined.join(text.format(place) for text, place in places if place is not None)
    if where:
        lines.append((words.where, where))
    if not alert.over and (did := words.done.get(alert.kind)):
        lines.append((words.did, did.format(attempt=alert.attempt, restarts=alert.restarts)))
    if alert.seconds is not None:
        took = words.recovered_in if alert.kind is AlertKind.RECOVERED else words.ran_for
        lines.append((words.took, took.format(took=span(alert.seconds))))
    if (lost := alert.lost_steps) is not None:
        text = words.lost if alert.kind in (AlertKind.RECOVERED, AlertKind.NO_CHECKPOINT_YET) else words.unsafe
        cost = text.format(lost=lost, step=alert.step, kept=alert.kept_step)
        lines.append((words.cost, cost if lost else words.nothing_lost))
    if alert.evidence:
        lines.append((words.evidence, alert.evidence))
    return lines


def _next(alert: Alert, words: Words) -> tuple[str, str]:
    """There is always a command: to look, if nothing else."""
    namespace = "" if alert.namespace == "default" else f" -n {alert.namespace}"
    look = Step(f"kubectl deepseek status {alert.job}{namespace}")
    step = look
    if not alert.over and alert.kind not in (AlertKind.RECOVERED, AlertKind.COMPLETE):
        step = next_step(alert.reason, alert.namespace, alert.job, alert.node) or look
    if not step.first:
        return "", step.command
    first = next((text for known, text in words.first.items() if known == alert.reason), step.first)
    return first, step.command


def span(seconds: int) -> str:
    """Two units at most, in signs that both languages read: 42 s, 3 min 5 s, 2 h 10 min, 3 d 4 h."""
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // small
            return f"{seconds // size} {unit} {rest} {small_unit}" if rest else f"{seconds // size} {unit}"
    return f"{seconds} s"
