"""The operator's environment: names, defaults, and mistakes that are said."""

import pytest

from ciuic_operator.settings import ExitHook, Settings, SettingsError, from_environment


def test_an_empty_environment_has_all_defaults() -> None:
    assert from_environment({}) == Settings()
    assert from_environment({"CIUIC_HUB_PORT": "", "CIUIC_TEST_EXIT_AT": ""}) == Settings()


def test_everything_can_be_said() -> None:
    chosen = from_environment(
        {
            "CIUIC_RELEASE_NAME": "ds",
            "CIUIC_RELEASE_NAMESPACE": "ml",
            "CIUIC_POD_NAME": "p",
            "CIUIC_POD_UID": "u",
            "CIUIC_HUB_PORT": "9443",
            "CIUIC_METRICS_PORT": "9090",
            "CIUIC_LEASE_SECONDS": "15",
            "CIUIC_LOG_LEVEL": "debug",
            "KUBECONFIG": "/x",
            "CIUIC_ALERT_RECEIVERS": '[{"name":"oncall","type":"slack"}]',
            "CIUIC_ALERTS_FOLDER": "/y",
        }
    )
    assert [receiver.name for receiver in chosen.receivers] == ["oncall"] and chosen.alerts_folder == "/y"
    assert chosen.release == "ml/ds" and chosen.hub_ca_secret == "ds-hub-ca"
    assert chosen.hub_url == "wss://ds.ml.svc:9443/v1/agent"
    assert (chosen.metrics_port, chosen.lease_seconds, chosen.log_level) == (9090, 15.0, "DEBUG")
    named = from_environment({"CIUIC_HUB_HOST": "10.88.0.1", "CIUIC_HUB_CA_SECRET": "mine"})
    assert named.hub_url == "wss://10.88.0.1:8443/v1/agent" and named.hub_ca_secret == "mine"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CIUIC_HUB_PORT", "no"),
        ("CIUIC_HUB_PORT", "0"),
        ("CIUIC_METRICS_PORT", "70000"),
        ("CIUIC_LEASE_SECONDS", "1"),
        ("CIUIC_LEASE_SECONDS", "-30"),
        ("CIUIC_LOG_LEVEL", "LOUD"),
        ("CIUIC_ALERT_RECEIVERS", "oncall"),
        ("CIUIC_TEST_EXIT_AT", "sometimes"),
        ("CIUIC_TEST_EXIT_AT", "after-act:attempt"),
        ("CIUIC_TEST_EXIT_AT", "after-act:step:4"),
    ],
)
def test_a_mistake_names_variable_value_and_remedy(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name} is '?{value}'?; write ") as mistake:
        from_environment({name: value})
    assert len(str(mistake.value)) < 200


@pytest.mark.parametrize(
    ("text", "before", "after", "due"),
    [
        ("after-persist", 1, 2, True),
        ("after-persist", 2, 2, False),
        ("after-persist:attempt:2", 1, 2, True),
        ("after-persist:attempt:2", 2, 3, False),
        ("after-persist:attempt:2", 0, 1, False),
        ("after-act:nextIncarnation:3", 2, 6, True),
    ],
)
def test_the_exit_hook_fires_once(text: str, before: int, after: int, due: bool) -> None:
    hook = from_environment({"CIUIC_TEST_EXIT_AT": text}).exit_hook
    assert isinstance(hook, ExitHook) and hook.due(before, after) is due
