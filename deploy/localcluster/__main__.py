"""Command line of the embedded Kubernetes: `python3 deploy/localcluster up | down | status | ...`, run as root."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # so that `localcluster` is importable as a package

from localcluster import builds, cluster, locking  # noqa: E402
from localcluster.components import COMPONENTS  # noqa: E402
from localcluster.layout import Layout  # noqa: E402
from localcluster.output import Failure, report  # noqa: E402


def parser() -> argparse.ArgumentParser:
    """All commands with their help."""
    names = [component.name for component in COMPONENTS]
    top = argparse.ArgumentParser(prog="localcluster", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="make the cluster be there; again and again is fine")
    down = commands.add_parser("down", help="end the cluster and remove all of it; programs and images stay cached")
    down.add_argument("--purge", action="store_true", help="delete cached images too")
    commands.add_parser("status", help="what runs and what does not; exit code 1 unless all is ready")
    commands.add_parser("env", help='print shell exports: eval "$(python3 deploy/localcluster env)"')
    for name, text in (("start", "start one component"), ("stop", "stop one component; its data stay")):
        commands.add_parser(name, help=text).add_argument("component", choices=names)
    build = commands.add_parser("build-image", help="build an image into the node's store")
    build.add_argument("name", help=f"{' or '.join(builds.IMAGES)}, or any image name together with --file")
    build.add_argument("--file", type=Path, help="the Dockerfile")
    build.add_argument("--context", type=Path, help="the build context; default: the folder of the Dockerfile")
    build.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    commands.add_parser("build-images", help=f"build {' and '.join(builds.IMAGES)}")
    return top


def build_image(layout: Layout, arguments: argparse.Namespace) -> None:
    """Builds one image: ours by its short name, or any other with --file."""
    with locking.exclusive(layout):
        for name in ("containerd", "buildkitd"):
            cluster.start_one(layout, name)
    extra = {}
    for given in arguments.build_arg:
        key, equals, value = given.partition("=")
        if not equals:
            raise Failure(f"--build-arg {given!r} has no value; write NAME=VALUE")
        extra[key] = value
    with locking.exclusive(layout, "build-lock"):
        if arguments.file is not None:
            dockerfile = arguments.file.resolve()
            context = (arguments.context or dockerfile.parent).resolve()
            builds.build(layout, arguments.name, dockerfile, context, extra)
        elif arguments.name in builds.IMAGES:
            builds.build_own(layout, arguments.name, extra)
        else:
            raise Failure(f"{arguments.name!r} is none of {', '.join(builds.IMAGES)}; give its Dockerfile with --file")


def run(layout: Layout, arguments: argparse.Namespace) -> int:
    """Carries out one command; returns the exit code."""
    if arguments.command == "env":
        print(f"export KUBECONFIG={shlex.quote(str(layout.kubeconfig))} PATH={shlex.quote(str(layout.bin))}:$PATH")
        return 0
    if os.geteuid() != 0:
        raise Failure(f"the user id is {os.geteuid()}, but containers and networks need root; run it with sudo -E")
    if arguments.command == "status":
        return 0 if cluster.status(layout) else 1
    if arguments.command == "build-image":
        build_image(layout, arguments)
        return 0
    if arguments.command == "build-images":
        for name in builds.IMAGES:
            build_image(layout, argparse.Namespace(name=name, file=None, context=None, build_arg=[]))
        return 0
    with locking.exclusive(layout):
        if arguments.command == "up":
            cluster.up(layout)
        elif arguments.command == "down":
            cluster.down(layout, arguments.purge)
        elif arguments.command == "start":
            cluster.start_one(layout, arguments.component)
        else:
            cluster.stop_one(layout, arguments.component)
    return 0


def main() -> int:
    """Entry point; failures become one sentence and exit code 1."""
    arguments = parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a build's client is ended with us
    try:
        return run(Layout.from_environment(), arguments)
    except Failure as failure:
        report(failure)
        return 1
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command continues where it stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
