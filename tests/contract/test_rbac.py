"""The chart's roles grant exactly what the operator's calls need: nothing missing, nothing more."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from ciuic_operator.kube import RULES

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [d for d in yaml.safe_load_all((ROOT / "deploy/install.yaml").read_text()) if d]
OPERATOR = "deepseekjob"
CA_SECRET = "deepseekjob-hub-ca"

Right = tuple[str, str, str, str, tuple[str, ...]]
"""Scope, API group, resource, verb, resource names."""


def bound_roles() -> Iterable[tuple[str, dict[str, Any]]]:
    """Each role that is bound to the operator's ServiceAccount, with where it holds."""
    for binding in DOCUMENTS:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": "deepseekjob-system"}]
        where = binding["metadata"].get("namespace", "")
        (role,) = [
            document
            for document in DOCUMENTS
            if document["kind"] == binding["roleRef"]["kind"]
            and document["metadata"]["name"] == binding["roleRef"]["name"]
            and document["metadata"].get("namespace", "") == where
        ]
        yield {"": "cluster", "kube-system": "lease", "deepseekjob-system": "release"}[where], role


def granted() -> set[Right]:
    return {
        (scope, group, resource, verb, tuple(rule.get("resourceNames", ())))
        for scope, role in bound_roles()
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed() -> set[Right]:
    return {
        (
            rule.scope,
            rule.group,
            rule.resource,
            verb,
            tuple(CA_SECRET if name.startswith("<") else name for name in rule.names),
        )
        for rule in RULES
        for verb in rule.verbs
    }


def test_roles_cover_the_calls() -> None:
    assert needed() - granted() == set()


def test_roles_grant_nothing_more() -> None:
    assert granted() - needed() == set()


def test_the_secret_is_the_one_that_the_operator_is_told_of() -> None:
    (deployment,) = [d for d in DOCUMENTS if d["kind"] == "Deployment"]
    env = {e["name"]: e.get("value") for e in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["CIUIC_HUB_CA_SECRET"] == CA_SECRET
