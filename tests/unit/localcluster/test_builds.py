"""Image names, which images are removed, and that the Dockerfiles fit the base image."""

import re

import pytest
from localcluster import builds, images

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


def test_images_without_a_name_are_found() -> None:
    assert builds.without_name(LISTING) == ["sha256:c0"]


@pytest.mark.parametrize("image", builds.IMAGES.values(), ids=builds.IMAGES)
def test_a_dockerfile_fits_the_base_image_and_stands_alone(image: builds.Image) -> None:
    text = (builds.ROOT / image.dockerfile).read_text()
    packages = re.search(r'^ARG PACKAGES="(.*)"$', text, re.MULTILINE)
    assert packages is not None
    assert set(packages[1].split()) <= set(images.BASE_PACKAGES)
    assert re.search(r"^ARG BASE=docker\.io/library/debian:", text, re.MULTILINE), "a public base is the default"
    for source in re.findall(r"\bsource=([^,\s]+)", text):
        assert (builds.ROOT / source).is_file()
