"""Make the Python environment of the project and print its path. Called by the Makefile.

It lies in the cache folder under the digest of the lock file, so that every checkout of one version shares it, and it
is complete once it carries its mark: an interrupted install begins again.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

LOCK = Path(__file__).parent.parent / "requirements" / "dev.txt"
UV = "uv==0.13.9"


def cache_folder() -> Path:
    return Path(os.environ.get("DEEPSEEKJOB_CACHE") or Path.home() / ".cache" / "deepseekjob")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def uv_program(cache: Path) -> Path:
    """uv, installed from the package index into a small environment of its own."""
    home = cache / "tools"
    program = home / "bin" / "uv"
    if not program.exists():
        say(f"installing {UV} into {home}")
        try:
            venv.create(home, with_pip=True, clear=True)
        except subprocess.CalledProcessError:
            say("this Python has no ensurepip: installing the Debian package python3-venv")
            subprocess.run(["apt-get", "install", "-y", "-q", "python3-venv"], check=True, stdout=sys.stderr)
            venv.create(home, with_pip=True, clear=True)
        subprocess.run([home / "bin" / "pip", "install", "-q", UV], check=True, stdout=sys.stderr)
    return program


def main() -> None:
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / f"venv-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    mark = home / ".complete"
    if not mark.exists():
        uv = uv_program(cache)
        say(f"installing the locked Python packages into {home} (about 6 GB, most of it torch; a minute or two)")
        shutil.rmtree(home, ignore_errors=True)
        env = os.environ | {"UV_CACHE_DIR": str(cache / "uv"), "VIRTUAL_ENV": str(home)}
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, home], check=True, env=env, stdout=sys.stderr)
        install = [str(uv), "pip", "install", "--require-hashes", "--compile-bytecode", "-r", str(LOCK)]
        subprocess.run(install, check=True, env=env, stdout=sys.stderr)
        mark.touch()
    print(home)


if __name__ == "__main__":
    main()
