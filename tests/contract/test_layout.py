"""Where code may lie and what it may import. The import contracts themselves are in pyproject.toml."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "operator/ciuic_operator"
CONTRACTS = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
PURE = CONTRACTS["pure"]["source_modules"]


def test_operator_has_no_init() -> None:
    """It would shadow the standard library's `operator` for whoever has the checkout's root on sys.path."""
    assert not (ROOT / "operator/__init__.py").exists()


def test_import_contracts_hold() -> None:
    program = Path(sys.executable).parent / "lint-imports"
    environment = {"PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer_image'}", "PATH": "/usr/bin:/bin"}
    result = subprocess.run([program, "--no-cache"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_module_of_the_operator_has_its_layer() -> None:
    """A module that is in no layer could import anything."""
    named = {
        name.strip(" ()") for layer in CONTRACTS["layers"]["layers"] for name in layer.replace(":", "|").split("|")
    }
    found = {f"ciuic_operator.{path.stem}" for path in OPERATOR.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert found - {"ciuic_operator.__init__", "ciuic_operator.__pycache__"} - named == set()


def module_files(module: str) -> list[Path]:
    for root in (ROOT / "operator", ROOT / "trainer_image"):
        path = root / module.replace(".", "/")
        if path.is_dir():
            return sorted(path.rglob("*.py"))
        if path.with_suffix(".py").exists():
            return [path.with_suffix(".py")]
    raise AssertionError(f"no module {module}")


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_never_ask_for_the_time(module: str) -> None:
    """`datetime` as a type is allowed there, the clock is not: time is an argument."""
    for file in module_files(module):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Attribute) or node.attr not in ("now", "utcnow", "today"):
                continue
            # `world.now` is the argument; `datetime.now` is the clock.
            clock = isinstance(node.value, ast.Name) and node.value.id in ("datetime", "date")
            assert not clock, f"{file.relative_to(ROOT)}:{node.lineno} asks the clock"
