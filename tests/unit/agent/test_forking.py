"""Which commands are forked, and what the fork server imports for them."""

import os
import sys
from pathlib import Path

import pytest

from ciuic_trainer.agent.forking import TRAINER_MODULES, Program, heavy_imports, modules_for, program

HERE = str(Path(sys.executable).parent)


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("import torch\n", ("torch",)),
        ("import torch.nn as nn, deepspeed\n", ("torch", "deepspeed")),
        ("from transformers.models import llama\n", ("transformers",)),
        ("def main():\n    import numpy\n", ("numpy",)),
        ("import torchvision\nfrom . import torch\n", ()),
        ("# import torch\n'import torch'\n", ()),
        ("import torch\nthis is no Python", ()),
        ("\0", ()),
    ],
)
def test_heavy_imports(text: str, modules: tuple[str, ...]) -> None:
    assert heavy_imports(text) == modules


def test_programs_of_this_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    name = Path(sys.executable).name
    run_script = Program("", str(script), ("--steps", "3"))
    assert program((sys.executable, str(script), "--steps", "3"), os.defpath) == run_script
    assert program((name, "-u", str(script), "--steps", "3"), HERE) == run_script
    assert program((name, "-m", "pkg.train", "x"), HERE) == Program("pkg.train", "", ("x",))


@pytest.mark.parametrize(
    "command",
    [
        ("bash", "-c", "python train.py"),
        ("torchrun", "train.py"),
        ("python",),
        ("python", "-m"),
        ("python", "-c", "pass"),
        ("python", "-X", "dev", __file__),
        ("python", "missing.py"),
        ("no-such-program",),
    ],
)
def test_what_is_not_forked(command: tuple[str, ...]) -> None:
    assert program(command, f"{HERE}:{os.defpath}") is None


def test_another_python_is_not_forked(tmp_path: Path) -> None:
    """Of the same program, but with other packages: a virtual environment is known by where its python lies."""
    (tmp_path / "python").symlink_to(sys.executable)
    assert program(("python", __file__), str(tmp_path)) is None


def test_what_is_imported_for_a_job(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    assert modules_for((), HERE) == TRAINER_MODULES
    assert modules_for(("python", str(script)), HERE) == ("torch",)
    assert modules_for(("python", "-m", "train"), HERE) == ()
    assert modules_for(("bash", str(script)), HERE) == ()
