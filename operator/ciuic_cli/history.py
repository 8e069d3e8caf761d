"""What `kubectl deepseek history` shows: the newest failures of a job, what was done about each, and what it cost. Pure.

Tolerant as `snapshot` is: an entry of an older operator has no stages, one of a newer may have more than are known here.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic.alias_generators import to_camel
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ciuic_api.accounts import STAGES
from ciuic_api.jobstatus import TERMINAL

Json = Mapping[str, Any]
UNKNOWN = "-"


def history_view(job: Json) -> RenderableType:
    """`job` is the object as the API server has it."""
    status = job.get("status") or {}
    ledger = status.get("ledger") or []
    name = Text.assemble((job["metadata"]["name"], "bold"), "  ")
    if not ledger:
        return Group(name.append("nothing has failed"), Text(totals(status), style="dim"))
    some = f"{len(ledger)} failures" if len(ledger) > 1 else "failure"
    older = (status.get("restarts") or {}).get("total", 0) > len(ledger)
    name.append(f"the newest {some}" if older else f"its {some}")
    parts: list[RenderableType] = [name, Text(), _failures(ledger, status)]
    if any(entry.get("stages") for entry in ledger):
        parts += [Text(), Text("seconds of each recovery", style="dim"), _stages(ledger)]
    return Group(*parts, Text(), Text(totals(status)))


def totals(status: Json) -> str:
    counts = status.get("restarts") or {}
    said = [
        f"restarts {counts.get('total', 0)} ({counts.get('software', 0)} after failures,"
        f" {counts.get('disruption', 0)} after disruptions)",
        f"{status.get('lostSteps', 0):,} steps lost",
    ]
    share = ettr(status.get("ettr"), status.get("ettrLastHour"))
    return "  ·  ".join([*said, *([f"ETTR {share}"] if share else [])])


def ettr(whole: str | None, last_hour: str | None) -> str:
    """`97.3 % (last hour 95.0 %)`, or empty while there is none."""
    if whole is None:
        return ""
    return f"{_percent(whole)} (last hour {_percent(last_hour)})" if last_hour is not None else _percent(whole)


def _percent(share: str) -> str:
    return f"{100 * float(share):.1f} %"


def _failures(ledger: list[Json], status: Json) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("#", "WHEN (UTC)", "REASON", "CLASS", "WHO", "THEN", "LOST"):
        table.add_column(heading, justify="right" if heading in ("#", "LOST") else "left")
    for number, entry in enumerate(ledger, 1):
        lost = entry.get("lostSteps")
        table.add_row(
            str(number),
            _when(entry),
            Text(entry.get("reason", ""), "yellow" if entry.get("recovered") else "red"),
            "software" if entry.get("counted", True) else "disruption",
            _who(entry),
            _then(entry, status, newest=number == len(ledger)),
            UNKNOWN if lost is None else f"{lost:,}",
        )
    return table


def _when(entry: Json) -> str:
    moment = datetime.fromisoformat(entry.get("failedAt") or entry["at"])
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _who(entry: Json) -> str:
    rank, slot, node = entry.get("rank"), entry.get("slot"), entry.get("node")
    one = [f"rank {rank}"] if rank is not None else [f"slot {slot}"] if slot is not None else []
    return ", ".join([*one, *([node] if node else [])]) or UNKNOWN


def _then(entry: Json, status: Json, newest: bool) -> str:
    """What was done, and what became of it where it did not end well."""
    if not entry.get("stages"):
        return UNKNOWN
    restored, tier = entry.get("restored"), entry.get("tier")
    start = f"from step {restored['step']} ({tier})" if restored else "from step 0" if tier else ""
    if entry.get("recovered"):
        return start
    over = status.get("state") in TERMINAL
    under_way = newest and not over and status.get("attempt") == entry.get("attempt", 0) + 1
    ending = "under way" if under_way else "not restarted" if newest and over and not start else "cut short"
    return f"{start}, {ending}" if start else ending


def _stages(ledger: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("#", *(stage.replace("_", " ").upper() for stage in STAGES), "ALL"):
        table.add_column(heading, justify="right")
    for number, entry in enumerate(ledger, 1):
        stages = entry.get("stages")
        if not stages:
            continue
        times = [stages.get(to_camel(stage)) for stage in STAGES]
        every = sum(time for time in times if time is not None) if entry.get("recovered") else None
        table.add_row(str(number), *(_seconds(time) for time in times), Text(_seconds(every), "bold"))
    return table


def _seconds(milliseconds: int | None) -> str:
    return UNKNOWN if milliseconds is None else f"{milliseconds / 1000:.1f}"
