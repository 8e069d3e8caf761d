"""How this machine reaches package registries, handed to image builds as secrets so that no layer keeps it.

Dockerfiles mount the secret `ca` (a bundle of certificate authorities) and `registry` (shell assignments for pip and
uv), both optional, and the build context `wheels` (a folder of local packages, empty by default).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster.layout import Layout

CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
SOURCES = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))


@contextmanager
def for_build(layout: Layout) -> Iterator[list[str]]:
    """Options of buildctl; the files they name exist inside the block only."""
    pip = pip_settings(_pip_config())
    with tempfile.TemporaryDirectory(dir=layout.run / "tmp") as folder:
        environment = Path(folder) / "registry.env"
        environment.touch(mode=0o600)
        environment.write_text(shell_assignments(pip, dict(os.environ)))
        options = ["--secret", f"id=registry,src={environment}"]
        bundle = ca_bundle(pip, dict(os.environ))
        if bundle is not None:
            options += ["--secret", f"id=ca,src={bundle}"]
        wheels = Path(pip.get("find-links", ""))
        if wheels.is_absolute() and wheels.is_dir() and any(wheels.iterdir()):
            options += ["--local", f"wheels={wheels}", "--opt", "context:wheels=local:wheels"]
        yield options


def _pip_config() -> str:
    command = [sys.executable, "-m", "pip", "config", "list"]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stdout if result.returncode == 0 else ""  # a machine without pip has no settings for it


def pip_settings(listing: str) -> dict[str, str]:
    """Setting -> value of `pip config list`; what is set by environment overrides what is set in files."""
    found: dict[str, str] = {}
    for scope in ("global", "install", ":env:"):
        for line in listing.splitlines():
            match = re.match(rf"{re.escape(scope)}\.([a-z-]+)='(.*)'$", line)
            if match:
                found[match[1]] = match[2]
    return found


def shell_assignments(pip: dict[str, str], environment: dict[str, str]) -> str:
    """What pip and uv need to know inside a build, as lines of a shell file."""
    wanted: dict[str, str] = {}
    if "index-url" in pip:
        wanted |= {"PIP_INDEX_URL": pip["index-url"], "UV_DEFAULT_INDEX": pip["index-url"]}
    if "extra-index-url" in pip:
        wanted |= {"PIP_EXTRA_INDEX_URL": pip["extra-index-url"], "UV_INDEX": pip["extra-index-url"]}
    for name in environment:
        if (name.startswith("UV_") and "INDEX" in name) or name in PROXY_VARIABLES:
            wanted[name] = environment[name]
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in wanted.items())


def ca_bundle(pip: dict[str, str], environment: dict[str, str]) -> Path | None:
    """The file with the authorities that this machine trusts, when it names one."""
    for named in (pip.get("cert"), *(environment.get(name) for name in CA_VARIABLES)):
        if named and Path(named).is_file():
            return Path(named)
    return None


def debian_mirror() -> list[str]:
    """[] or [the mirror that this machine's apt uses], when it is a Debian; debootstrap knows the public one itself."""
    release = Path("/etc/os-release")
    if shutil.which("apt-get") is None or not release.exists() or "\nID=debian\n" not in f"\n{release.read_text()}":
        return []
    for place in SOURCES:
        for file in sorted(place.iterdir()) if place.is_dir() else [place]:
            mirror = first_mirror(file.read_text()) if file.is_file() else ""
            if mirror:
                return [mirror]
    return []


def first_mirror(sources: str) -> str:
    """The first Debian archive in a file of apt sources, in either of its two formats."""
    match = re.search(r"^(?:URIs:|deb(?: \[[^\]]*\])?)\s+(\S+/debian/?)(?=\s)", sources + "\n", re.MULTILINE)
    return match[1] if match else ""
