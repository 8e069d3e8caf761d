"""The commands of `kubectl deepseek`. Each parses, asks the cluster and prints; the rest lies in the other modules."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from . import cluster as clusters
from . import curves, plot, submitting
from . import logs as log_lines
from .cluster import Cluster
from .errors import CliError, Refused, Unreachable
from .history import history_view
from .snapshot import Snapshot, snapshot
from .view import job_line, job_list, job_view

LOOK_SECONDS = 1.0
CHART_POINTS = 240
CHART_CHARACTERS = (62, 16)
RANK_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")

app = typer.Typer(
    name="kubectl-deepseek",
    help="Submit DeepSeekJobs, watch them and read their logs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out, err = Console(highlight=False), Console(stderr=True, highlight=False)

Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace; default: the context's.")]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="Path of the kubeconfig.")]


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="A job; default: all jobs of the namespace.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay, and show changes until the job is over.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show a job: its state and why, progress, pods, checkpoints, the last failure and what to type next."""
    cluster = clusters.connect(kubeconfig, context, namespace)
    if name is None:
        if watch:
            raise CliError("--watch needs a job's name; `kubectl get dsj --watch` follows all of them")
        _show_all(cluster)
    elif watch:
        raise typer.Exit(_watch(cluster, name))
    else:
        out.print(job_view(_look(cluster, name), datetime.now(UTC)), crop=False)


@app.command()
def history(
    name: Annotated[str, typer.Argument(help="The job.")],
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show a job's newest failures: what was done about each, how long each part of it took, and what was lost."""
    cluster = clusters.connect(kubeconfig, context, namespace)
    out.print(history_view(cluster.job(name)), crop=False)


@app.command()
def logs(
    name: Annotated[str, typer.Argument(help="The job.")],
    rank: Annotated[str, typer.Option("--rank", "-r", help="A rank's number, all, or failed.")] = "0",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay, and print lines as they come.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last lines, of each pod.")] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print what ranks have written: one, all, or those of the last failure."""
    cluster = clusters.connect(kubeconfig, context, namespace)
    job = _look(cluster, name)
    selection = log_lines.select(job, rank)
    if selection.remark:
        err.print(Text(selection.remark, style="yellow"), soft_wrap=True)
    lines = (
        log_lines.followed(lambda: _look(cluster, name), selection, cluster.log_lines, tail)
        if follow
        else log_lines.recorded(job, selection, cluster.log_lines, tail)
    )
    for line in lines:
        _print_line(line)


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="YAML with one or more jobs, and ConfigMaps and Secrets they read.")],
    force_conflicts: Annotated[bool, typer.Option(help="Set fields that somebody else has set.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Check a job's file and apply it."""
    submission = submitting.read(_read(file), str(file))
    for warning in submission.warnings:
        _warn(warning)
    cluster = clusters.connect(kubeconfig, context, namespace)
    for document in submission.documents:
        _apply(cluster, document, explicit=namespace is not None, force=force_conflicts)
    option = "" if cluster.namespace == "default" else f" -n {cluster.namespace}"
    for job in submission.jobs:
        command = f"kubectl deepseek status {job['metadata']['name']}{option} --watch"
        err.print(Text(f"watch it:  {command}", style="dim"), soft_wrap=True)


@app.command()
def lr(
    file: Annotated[Path, typer.Argument(help="YAML with one or more jobs.")],
    svg: Annotated[Path | None, typer.Option(help="Also draw into this SVG file.")] = None,
) -> None:
    """Draw the learning rates that a job's file plans. Asks no cluster and changes nothing."""
    submission = submitting.read(_read(file), str(file))
    for warning in submission.warnings:
        raise CliError(warning)
    trainings = {job["metadata"]["name"]: submitting.training(job) for job in submission.jobs}
    found = [(name, curves.plan(training, CHART_POINTS)) for name, training in trainings.items() if training]
    if not found:
        raise CliError(f"{file} holds no job with spec.training; a command keeps its own learning rate")
    if svg is not None and len(found) > 1:
        raise CliError(f"{file} holds {len(found)} jobs and --svg names one file; give a file with one job")
    for name, plan in found:
        out.print(Text(f"{name}: {plan.title}", style="bold"))
        out.print(plot.terminal(plan, *CHART_CHARACTERS), crop=False, no_wrap=True)
        for landmark, step in plan.landmarks:
            out.print(f"{landmark:>20}  step {step:<10,} {', '.join(f'{rate:.3e}' for rate in plan.at(step))}")
        if svg is not None:
            svg.write_text(plot.svg(plan))


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _apply(cluster: Cluster, document: submitting.Json, explicit: bool, force: bool) -> None:
    own = document["metadata"].get("namespace")
    if own and own != cluster.namespace:
        if explicit:
            raise CliError(f"the file says namespace {own}, the command line {cluster.namespace}; make them equal")
        cluster.namespace = own
    try:
        new, warnings = cluster.apply(document, force)
    except Refused as error:
        raise CliError(submitting.explain(error, document)) from error
    for warning in warnings:
        _warn(warning)
    what = f"{document['kind'].lower()} {document['metadata']['name']}"
    out.print(f"{what} {'created' if new else 'applied'} in namespace {cluster.namespace}")


def _warn(text: str) -> None:
    err.print(Text(f"warning: {text}", style="yellow"), soft_wrap=True)


def _look(cluster: Cluster, name: str) -> Snapshot:
    return snapshot(cluster.job(name), cluster.pods(name))


def _show_all(cluster: Cluster) -> None:
    jobs = [snapshot(job, []) for job in cluster.jobs()]
    if not jobs:
        out.print(f"no jobs in namespace {cluster.namespace}")
        return
    out.print(job_list(jobs, datetime.now(UTC)))


def _watch(cluster: Cluster, name: str) -> int:
    """0 when the job is complete in the end, 1 when it failed. Outlives an API server that is away for a while."""
    job = _look(cluster, name)
    if not out.is_terminal:
        return _watch_lines(cluster, name, job)
    with Live(job_view(job, datetime.now(UTC)), console=out, auto_refresh=False, vertical_overflow="visible") as live:
        while not job.over:
            time.sleep(LOOK_SECONDS)
            try:
                job = _look(cluster, name)
            except Unreachable as error:
                live.console.print(Text(f"{error}; trying again", style="dim"), soft_wrap=True)
                continue
            live.update(job_view(job, datetime.now(UTC)), refresh=True)
    return int(job.state == "Failed")


def _watch_lines(cluster: Cluster, name: str, job: Snapshot) -> int:
    shown = ""
    while True:
        line = job_line(job)
        if line != shown:
            print(f"{datetime.now():%H:%M:%S}  {line}", flush=True)
            shown = line
        if job.over:
            return int(job.state == "Failed")
        time.sleep(LOOK_SECONDS)
        try:
            job = _look(cluster, name)
        except Unreachable as error:
            err.print(Text(f"{error}; trying again", style="dim"), soft_wrap=True)


def _print_line(line: str) -> None:
    found = log_lines.PREFIX.match(line)
    if not out.is_terminal or found is None:
        print(line, flush=True)
        return
    colour, said = RANK_COLOURS[int(found[1]) % len(RANK_COLOURS)], line[found.end() :]
    out.print(Text.assemble((found[0], colour), (said, "dim" if said.startswith("{") else "")), soft_wrap=True)


def main() -> None:
    try:
        app()
    except CliError as error:
        err.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # `kubectl deepseek logs | head`


if __name__ == "__main__":
    main()
