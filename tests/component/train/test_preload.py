"""A forked rank imports nothing heavy any more: each second of it would be paid at every restart."""

import json
import os
import signal
import sys
from multiprocessing.context import ForkServerContext
from pathlib import Path

from .ranks import call
from .test_training import training

HEAVY = ("torch.", "deepspeed.", "transformers.", "numpy.", "pydantic.")


def imported_late(configuration: Path) -> list[str]:
    from ciuic_trainer.train.__main__ import main

    before = set(sys.modules)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    assert main([str(configuration)], os.environ) == 0
    return sorted(name for name in set(sys.modules) - before if name.startswith(HEAVY))


def test_everything_is_imported_ahead(context: ForkServerContext, data: Path, tmp_path: Path) -> None:
    configuration = tmp_path / "training.json"
    configuration.write_text(json.dumps(training(data, steps=2)))
    assert call(context, imported_late, configuration) == []
