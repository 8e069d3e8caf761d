"""What the chart lets through the operator understands, and docs/alerts.md tells all of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ciuic_api.alerting import RECEIVER_NAME_MAX, AlertKind, AlertRoute
from ciuic_operator.receivers import LANGUAGES, ReceiverType, receivers

ROOT = Path(__file__).resolve().parents[2]
SCHEMA: dict[str, Any] = json.loads((ROOT / "charts/deepseekjob/values.schema.json").read_text())
RECEIVER = SCHEMA["definitions"]["receiver"]["properties"]
DOC = (ROOT / "docs/alerts.md").read_text()
SAMPLES: list[dict[str, Any]] = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", DOC, re.S)]


def test_the_charts_schema_is_the_operators() -> None:
    assert RECEIVER["type"]["enum"] == list(ReceiverType) and RECEIVER["language"]["enum"] == list(LANGUAGES)
    assert RECEIVER["name"]["maxLength"] == RECEIVER_NAME_MAX
    for name in ("oncall", "a", "a-1", "-a", "a-", "A", "a.b", ""):
        by_schema = bool(re.search(RECEIVER["name"]["pattern"], name))
        try:
            receivers(json.dumps([{"name": name, "type": "slack"}]))
            by_operator = True
        except ValueError:
            by_operator = False
        assert by_schema == by_operator, name


def test_the_samples_can_be_used() -> None:
    tried = set()
    for sample in SAMPLES:
        for entry in sample.get("alerts", {}).get("receivers", ()):
            assert set(entry) <= set(RECEIVER) and entry["secretName"]
            tried |= {one.type for one in receivers(json.dumps([entry]))}
        for route in sample.get("spec", {}).get("alerts", ()):
            AlertRoute.model_validate(route)
    assert tried == set(ReceiverType)


@pytest.mark.parametrize("word", [*AlertKind, *ReceiverType])
def test_every_kind_and_type_is_told(word: str) -> None:
    assert f"| `{word}` |" in DOC
