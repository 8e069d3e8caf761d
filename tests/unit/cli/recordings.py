"""Jobs and pods as a real cluster had them: a tiny job whose rank 1 was killed, a crash loop, an image that is nowhere."""

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ciuic_cli.snapshot import Snapshot, snapshot

FOLDER = Path(__file__).parent / "recorded"
NAMES = sorted(file.stem for file in FOLDER.glob("*.json"))
NOW = datetime(2026, 11, 30, 23, 35, 12, tzinfo=UTC)


def load(name: str) -> dict[str, Any]:
    return dict(json.loads((FOLDER / f"{name}.json").read_text()))


def recorded(name: str, spec: dict[str, Any] | None = None, **status: Any) -> Snapshot:
    """A recording, with changes of spec and status."""
    found = copy.deepcopy(load(name))
    found["job"]["spec"].update(spec or {})
    found["job"]["status"].update(status)
    return snapshot(found["job"], found["pods"])
