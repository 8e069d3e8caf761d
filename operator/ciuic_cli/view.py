"""How a job looks in the terminal. Pure: from a Snapshot and the time to something that rich can print."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ciuic_api.nextsteps import next_step

from .history import ettr
from .snapshot import Checkpoint, Failure, Snapshot, Warned

COLOURS = {
    "Pending": "yellow",
    "Starting": "cyan",
    "Running": "green",
    "Restarting": "yellow",
    "Suspending": "magenta",
    "Suspended": "magenta",
    "Complete": "bold green",
    "Failed": "bold red",
    "Terminating": "yellow",
    "Completed": "green",
    "Succeeded": "green",
    "Error": "red",
    "OOMKilled": "red",
    "Evicted": "red",
}
WELL = ("Running", "Complete")
MAX_PODS = 16
LABEL_WIDTH = 11
BAR_WIDTH = 32


def job_view(job: Snapshot, now: datetime) -> RenderableType:
    parts: list[RenderableType] = [
        _headline(job, now),
        Text(_sentence(job.message), style="dim" if job.state in WELL else ""),
    ]
    facts = _facts(job, now)
    if facts.row_count:
        parts += [Text(), facts]
    if job.pods:
        parts += [Text(), _pods(job, now)]
    parts += _advice(job, now)
    return Group(*parts)


def job_list(jobs: Iterable[Snapshot], now: datetime) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("JOB", "STATE", "REASON", "READY", "RESTARTS", "STEP", "LOSS"):
        table.add_column(heading, justify="right" if heading in ("RESTARTS", "LOSS") else "left")
    for job in jobs:
        table.add_row(job.name, _state(job.state), job.reason, job.ready, str(job.restarts), _step(job), job.loss or "")
    return table


def job_line(job: Snapshot) -> str:
    """For a pipe or a log: one line, printed when it changes."""
    facts = [f"step {_step(job)}"] if job.step or job.total_steps else []
    facts += [f"loss {job.loss}"] if job.loss else []
    facts += [f"{job.tokens_per_second:,} tokens/s"] if job.tokens_per_second else []
    facts += [f"attempt {job.attempt}"] if job.attempt else []
    facts += [f"restarts {job.restarts}"] if job.restarts else []
    return "  ".join((f"{job.state:<10}", job.reason, *facts, f"({job.message})"))


def _headline(job: Snapshot, now: datetime) -> Text:
    text = Text.assemble((job.name, "bold"), "  ", _state(job.state), "  ", (job.reason, "cyan"))
    if job.started:
        took = (job.finished or now) - job.started
        text.append(f"  {'took' if job.finished else 'for'} {duration(took.total_seconds())}", style="dim")
    return text


def _state(state: str) -> Text:
    return Text(state, style=COLOURS.get(state, "red"))


def _sentence(message: str) -> str:
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _facts(job: Snapshot, now: datetime) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", width=LABEL_WIDTH)
    table.add_column()
    if job.total_steps:
        table.add_row("step", _progress(job, job.total_steps))
    elif job.step:
        table.add_row("step", str(job.step))
    numbers = [f"loss {job.loss}"] if job.loss else []
    numbers += [f"held out {job.eval_loss}"] if job.eval_loss else []
    numbers += [f"{job.tokens_per_second:,} tokens/s"] if job.tokens_per_second else []
    if numbers:
        table.add_row("training", _dotted(numbers))
    if job.attempt and (job.state != "Pending" or job.step):
        start = f"from checkpoint {job.restored}" if job.restored else "from step 0"
        table.add_row("attempt", f"{job.attempt}, {start}")
    if job.restarts:
        split = f"{job.software_restarts} after failures, {job.disruptions} after disruptions"
        table.add_row("restarts", f"{job.restarts} ({split})")
    if share := ettr(job.ettr, job.ettr_last_hour):
        table.add_row("ETTR", f"{share}{f', {job.lost_steps:,} steps lost' if job.lost_steps else ''}")
    checkpoints = []
    if job.last_committed:
        checkpoints.append(_checkpoint(job.last_committed, "S3", now))
    if job.last_checkpoint and job.last_checkpoint.tier == "memory":
        checkpoints.insert(0, _checkpoint(job.last_checkpoint, "memory", now))
    if checkpoints:
        table.add_row("checkpoints", _dotted(checkpoints))
    return table


def _progress(job: Snapshot, total: int) -> Table:
    bar = ProgressBar(
        total=total,
        completed=min(job.step, total),
        width=BAR_WIDTH,
        complete_style="red" if job.state == "Failed" else "green",
        finished_style="green",
    )
    to_go = f"{duration(job.eta_seconds)} to go" if job.eta_seconds is not None and not job.over else ""
    row = Table.grid(padding=(0, 2))
    row.add_row(_step(job), bar, f"{100 * job.step // total} %", Text(to_go, "dim"))
    return row


def _step(job: Snapshot) -> str:
    return f"{job.step:,} of {job.total_steps:,}" if job.total_steps else f"{job.step:,}"


def _dotted(parts: Iterable[str]) -> Text:
    return Text("  ·  ").join(Text(part) for part in parts)


def _checkpoint(checkpoint: Checkpoint, tier: str, now: datetime) -> str:
    age = f", {duration((now - checkpoint.at).total_seconds())} ago" if checkpoint.at else ""
    return f"{tier} {checkpoint.step}.a{checkpoint.attempt}{age}"


def _pods(job: Snapshot, now: datetime) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading, justify in (("SLOT", "right"), ("POD", "left"), ("NODE", "left"), ("PHASE", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("RESTARTS", justify="right")
    table.add_column("AGE", justify="right")
    # Of many pods those that are not simply running are worth their line.
    shown = sorted(job.pods, key=lambda pod: (pod.phase == "Running", pod.slot))[:MAX_PODS]
    for pod in sorted(shown, key=lambda pod: (pod.slot, pod.incarnation)):
        age = duration((now - pod.created).total_seconds()) if pod.created else ""
        style = "green" if pod.phase == "Running" else COLOURS.get(pod.phase, "yellow")
        table.add_row(str(pod.slot), pod.name, pod.node or "-", Text(pod.phase, style), str(pod.restarts), age)
    if len(job.pods) > len(shown):
        hidden = Counter(pod.phase for pod in job.pods if pod not in shown)
        table.add_row("", "and " + ", ".join(f"{count} more {phase}" for phase, count in sorted(hidden.items())))
    return table


def _advice(job: Snapshot, now: datetime) -> list[RenderableType]:
    """What is wrong now, the last failure, and the command to type next: of the state, the warning or the failure."""
    warnings = [warning for warning in job.warnings if warning.kind != job.reason and job.state != "Complete"]
    troubles, failure = _troubles(warnings, job.last_failure, job.over, now), job.last_failure
    step = next_step(job.reason, job.namespace, job.name)
    for warning in warnings:
        step = step or next_step(warning.kind, job.namespace, job.name)
    if step is None and failure and job.state != "Complete":
        step = next_step(failure.reason, job.namespace, job.name, failure.node)
    parts: list[RenderableType] = []
    if troubles.row_count or step:
        parts.append(Text())
    if troubles.row_count:
        parts.append(troubles)
    if step:  # never wrapped: it is there to be copied
        parts.append(
            Text.assemble(
                ("next".ljust(LABEL_WIDTH + 2), "dim"), (str(step), "bold cyan"), no_wrap=True, overflow="ignore"
            )
        )
    return parts


def _troubles(warnings: Iterable[Warned], failure: Failure | None, over: bool, now: datetime) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", width=LABEL_WIDTH)
    table.add_column()
    for warning in warnings:
        since = f", for {duration((now - warning.since).total_seconds())}" if warning.since else ""
        table.add_row("warning", Text.assemble((warning.kind, "bold yellow"), (since, "dim")))
        table.add_row("", _sentence(warning.message))
    if failure:
        when = f", {duration((now - failure.at).total_seconds())} ago" if failure.at else ""
        well = failure.recovered_seconds is not None
        title = Text.assemble((failure.reason, "yellow" if well or not over else "bold red"), (when, "dim"))
        if failure.recovered_seconds is not None:
            title.append(f", recovered in {duration(failure.recovered_seconds)}", style="green")
        table.add_row("failure", title)
        table.add_row("", _sentence(failure.message))
    return table


def duration(seconds: float) -> str:
    """Two units at most: 42s, 3m 05s, 2h 10m, 3d 4h."""
    total = max(int(seconds), 0)
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if total >= size:
            rest = total % size // small
            return f"{total // size}{unit} {rest:02d}{small_unit}" if unit != "d" else f"{total // size}d {rest}h"
    return f"{total}s"
