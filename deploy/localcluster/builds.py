"""Builds Dockerfiles with BuildKit straight into the node's image store. Called by `build-image`."""

from __future__ import annotations

import hashlib
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from localcluster import registries
from localcluster.images import base_name, ctr, ensure_base, exists, last_words
from localcluster.layout import HERE, Layout
from localcluster.output import Failure, progress, say

ROOT = HERE.parent.parent
DEPENDENCIES = "dependencies"  # the stage of our Dockerfiles that changes rarely


@dataclass(frozen=True)
class Image:
    """An image of this project."""

    name: str
    dockerfile: str  # below the checkout, which is the build context


IMAGES = {
    "operator": Image("ciuic/deepseekjob-operator:dev", "operator/Dockerfile"),
    "trainer": Image("ciuic/deepseek-train:latest", "trainer_image/Dockerfile"),
}


def full_name(name: str) -> str:
    """The name under which kubelet looks for it: `a/b` means docker.io/a/b:latest."""
    first, _, rest = name.partition("/")
    if not rest:
        name = f"docker.io/library/{name}"
    elif not ("." in first or ":" in first or first == "localhost"):
        name = f"docker.io/{name}"
    return name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"


def build(layout: Layout, name: str, dockerfile: Path, context: Path, arguments: dict[str, str], *options: str) -> None:
    """Builds an ordinary Dockerfile; the image is in the node's store afterwards, unpacked."""
    for path in (dockerfile, context):
        if not path.exists():
            raise Failure(f"{path} does not exist; give an existing Dockerfile with --file and folder with --context")
    arguments = {"BASE": ensure_base(layout)} | arguments
    log = layout.log / f"build-{name.replace('/', '_').replace(':', '_')}.log"
    with registries.for_build(layout) as registry_options:
        command = [
            str(layout.bin / "buildctl"), "--addr", f"unix://{layout.buildkit_socket}", "build",
            "--progress=plain", "--frontend=dockerfile.v0",
            "--local", f"context={context}", "--local", f"dockerfile={dockerfile.parent}",
            "--opt", f"filename={dockerfile.name}", "--opt", "image-resolve-mode=local",
            *(part for key, value in arguments.items() for part in ("--opt", f"build-arg:{key}={value}")),
            *registry_options, *options,
            "--output", f"type=image,name={full_name(name)},unpack=true,compression=uncompressed",
        ]  # fmt: skip
        with progress(f"image {name}") as step, log.open("w") as log_file:
            process = subprocess.Popen(command, stdout=log_file, stderr=subprocess.STDOUT)
            while True:
                try:
                    status = process.wait(0.2)
                    break
                except subprocess.TimeoutExpired:
                    step.tick(last_words(log))
                except BaseException:
                    process.terminate()
                    raise
            if status != 0:
                raise Failure(f"building {name} from {dockerfile} failed; mend what the log names and build again", log)
    say(f"{full_name(name)} is in the node's image store")


def build_own(layout: Layout, short: str, arguments: dict[str, str]) -> None:
    """Builds one of this project's images from the checkout.

    The stage `dependencies` becomes an image of its own, and what BuildKit cached for it is dropped: BuildKit keeps
    its own copy of each layer beside the one that pods run from, which is 6 GB for torch alone.
    """
    image = IMAGES[short]
    dockerfile = ROOT / image.dockerfile
    dependencies = f"localhost/{short}-dependencies:{dependencies_key(dockerfile, ROOT, arguments)}"
    if not exists(layout, dependencies):
        build(layout, dependencies, dockerfile, ROOT, arguments, "--opt", f"target={DEPENDENCIES}")
        buildctl(layout, "prune", "--all")
    override = f"context:{DEPENDENCIES}=docker-image://{dependencies}"
    build(layout, image.name, dockerfile, ROOT, arguments, "--opt", override)
    remove_superseded(layout, dependencies)


def dependencies_key(dockerfile: Path, context: Path, arguments: dict[str, str]) -> str:
    """Changes with all that the stage `dependencies` is made of: its instructions, the files they mount, arguments."""
    before, separator, _ = dockerfile.read_text().partition(f"\nFROM {DEPENDENCIES}")
    if not separator:
        raise Failure(f"{dockerfile} has no stage that begins with `FROM {DEPENDENCIES}`; name the heavy stage so")
    digest = hashlib.sha256(repr((base_name(), sorted(arguments.items()), before)).encode())
    for source in re.findall(r"\bsource=([^,\s]+)", before):
        digest.update((context / source).read_bytes())
    return digest.hexdigest()[:12]


def superseded(listing: str, current: str) -> list[str]:
    """Image references to remove, from `ctr images ls`: older `dependencies` images, and ids that have no name left."""
    digests = {fields[0]: fields[2] for line in listing.splitlines()[1:] if len(fields := line.split()) > 2}
    repository = current.rpartition(":")[0]
    older = [name for name in digests if name.startswith(f"{repository}:") and name != current]
    named = {digest for name, digest in digests.items() if not name.startswith("sha256:") and name not in older}
    return older + [name for name, digest in digests.items() if name.startswith("sha256:") and digest not in named]


def remove_superseded(layout: Layout, current: str) -> None:
    """Frees the disk that earlier versions of an image take."""
    old = superseded(ctr(layout, "images", "ls"), current)
    if old:
        ctr(layout, "images", "rm", *old)


def buildctl(layout: Layout, *arguments: str) -> None:
    """Runs BuildKit's client."""
    command = [str(layout.bin / "buildctl"), "--addr", f"unix://{layout.buildkit_socket}", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise Failure(
            f"`buildctl {' '.join(arguments)}` failed: {result.stderr.strip()}; `start buildkitd` and try again"
        )
