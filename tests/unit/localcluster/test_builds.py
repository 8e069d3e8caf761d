"""Image names, what makes a heavy layer anew, what is removed, and that the Dockerfiles fit the base image."""

import re
from pathlib import Path

import pytest
from localcluster import builds, images
from localcluster.output import Failure

DOCKERFILE = """\
ARG BASE=docker.io/library/debian:bookworm-slim
FROM ${BASE} AS dependencies
RUN --mount=type=bind,source=locked.txt,target=/run/locked.txt install /run/locked.txt

FROM dependencies
COPY code /code
"""

LISTING = """\
REF                        TYPE                                       DIGEST      SIZE    PLATFORMS   LABELS
docker.io/a/train:latest   application/vnd.oci.image.manifest.v1+json sha256:new  1 GiB   linux/amd64 -
localhost/t-dependencies:1 application/vnd.oci.image.manifest.v1+json sha256:old1 1 GiB   linux/amd64 -
localhost/t-dependencies:2 application/vnd.oci.image.manifest.v1+json sha256:new1 1 GiB   linux/amd64 -
sha256:c0                  application/vnd.oci.image.manifest.v1+json sha256:old  1 GiB   linux/amd64 -
sha256:c1                  application/vnd.oci.image.manifest.v1+json sha256:new  1 GiB   linux/amd64 -
sha256:c2                  application/vnd.oci.image.manifest.v1+json sha256:old1 1 GiB   linux/amd64 -
"""


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("ciuic/deepseek-train:latest", "docker.io/ciuic/deepseek-train:latest"),
        ("localhost/x:1", "localhost/x:1"),
        ("registry.invalid:5000/x", "registry.invalid:5000/x:latest"),
    ],
)
def test_names_are_those_that_kubelet_looks_for(name: str, full: str) -> None:
    assert builds.full_name(name) == full


def test_the_heavy_stage_is_made_anew_only_for_what_it_is_made_of(tmp_path: Path) -> None:
    dockerfile, locked = tmp_path / "Dockerfile", tmp_path / "locked.txt"
    dockerfile.write_text(DOCKERFILE)
    locked.write_text("torch==1")
    first = builds.dependencies_key(dockerfile, tmp_path, {})
    dockerfile.write_text(DOCKERFILE + "COPY more /more\n")
    assert builds.dependencies_key(dockerfile, tmp_path, {}) == first
    assert builds.dependencies_key(dockerfile, tmp_path, {"UV": "uv==0"}) != first
    locked.write_text("torch==2")
    assert builds.dependencies_key(dockerfile, tmp_path, {}) != first


def test_a_dockerfile_without_the_stage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(Failure, match="FROM dependencies"):
        builds.dependencies_key(tmp_path / "Dockerfile", tmp_path, {})


def test_superseded_images_are_older_dependencies_and_ids_without_a_name() -> None:
    assert sorted(builds.superseded(LISTING, "localhost/t-dependencies:2")) == [
        "localhost/t-dependencies:1",
        "sha256:c0",
        "sha256:c2",
    ]


@pytest.mark.parametrize("image", builds.IMAGES.values(), ids=builds.IMAGES)
def test_a_dockerfile_fits_the_base_image_and_stands_alone(image: builds.Image) -> None:
    text = (builds.ROOT / image.dockerfile).read_text()
    packages = re.search(r'^ARG PACKAGES="(.*)"$', text, re.MULTILINE)
    assert packages is not None
    assert set(packages[1].split()) <= set(images.BASE_PACKAGES)
    assert re.search(r"^ARG BASE=docker\.io/library/debian:", text, re.MULTILINE), "a public base is the default"
    for source in re.findall(r"\bsource=([^,\s]+)", text):
        assert (builds.ROOT / source).is_file()
    builds.dependencies_key(builds.ROOT / image.dockerfile, builds.ROOT, {})
