"""Builds Dockerfiles with BuildKit straight into the node's image store. Called by `build-image`."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from localcluster import registries
from localcluster.images import ctr, ensure_base, last_words
from localcluster.layout import HERE, Layout
from localcluster.output import Failure, progress, say

ROOT = HERE.parent.parent
# Room for both images with one version of torch. BuildKit keeps its own copy of each layer beside the one that pods run
# from; the least recently used goes first.
CACHE_MEGABYTES = 14_000


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


def build(layout: Layout, name: str, dockerfile: Path, context: Path, arguments: dict[str, str]) -> None:
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
            *registry_options,
            "--output", f"type=image,name={full_name(name)},unpack=true,compression=zstd,compression-level=1",
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
    """Builds one of this project's images from the checkout and frees the disk that its earlier versions take."""
    image = IMAGES[short]
    build(layout, image.name, ROOT / image.dockerfile, ROOT, arguments)
    nameless = without_name(ctr(layout, "images", "ls"))
    if nameless:
        ctr(layout, "images", "rm", *nameless)
    buildctl(layout, "prune", "--keep-storage", str(CACHE_MEGABYTES))


def without_name(listing: str) -> list[str]:
    """References by id whose image has no name left, from `ctr images ls`; kubelet's plug-in makes one per image."""
    digests = {fields[0]: fields[2] for line in listing.splitlines()[1:] if len(fields := line.split()) > 2}
    named = {digest for name, digest in digests.items() if not name.startswith("sha256:")}
    return [name for name, digest in digests.items() if name.startswith("sha256:") and digest not in named]


def buildctl(layout: Layout, *arguments: str) -> None:
    """Runs BuildKit's client."""
    command = [str(layout.bin / "buildctl"), "--addr", f"unix://{layout.buildkit_socket}", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise Failure(
            f"`buildctl {' '.join(arguments)}` failed: {result.stderr.strip()}; `start buildkitd` and try again"
        )
