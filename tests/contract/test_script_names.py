"""Files in a folder from which a script is run must not hide a module of the standard library.

Python puts a script's own folder first on its path: a `venv.py` beside it is what `import venv` then finds.
"""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("folder", ["tools", "deploy/localcluster"])
def test_no_script_folder_hides_the_standard_library(folder: str) -> None:
    hiding = {path.stem for path in (ROOT / folder).iterdir()} & (sys.stdlib_module_names - {"__main__"})
    assert not hiding
