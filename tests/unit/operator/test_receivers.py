"""The list of alert receivers that the chart gives to the operator."""

import json
from typing import Any

import pytest

from ciuic_operator.receivers import Receiver, ReceiverType, receivers


def test_the_chart_writes_a_list() -> None:
    text = json.dumps([{"name": "oncall", "type": "wecom", "language": "zh"}, {"name": "am", "type": "alertmanager"}])
    assert receivers(text) == (
        Receiver(name="oncall", type=ReceiverType.WECOM, language="zh"),
        Receiver(name="am", type=ReceiverType.ALERTMANAGER),
    )


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"name": "../x", "type": "slack"}, "name '../x' is not made of lower-case"),
        ({"name": "x" * 41, "type": "slack"}, "is not made of lower-case"),
        ({"name": "x", "type": "irc"}, "type 'irc' of x is none of wecom, dingtalk"),
        ({"name": "x", "type": "slack", "language": "fr"}, "language 'fr' of x is none of en, zh"),
    ],
)
def test_a_mistake_is_named(entry: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        receivers(json.dumps([entry]))


@pytest.mark.parametrize("text", ["{}", '["x"]', "no", '[{"name":"a","type":"slack"},{"name":"a","type":"slack"}]'])
def test_what_is_no_list_of_different_receivers(text: str) -> None:
    with pytest.raises(ValueError):
        receivers(text)
