"""The CustomResourceDefinition, generated from the models. Run as `python -m ciuic_api.crd` by `make gen`.

pydantic's JSON schema is turned into the structural form that Kubernetes asks for: references inlined, `anyOf` with
null dropped, titles removed, descriptions kept.
"""

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from . import GROUP, KIND, PLURAL, VERSION
from .job import JobSpec
from .jobstatus import JobStatus
from .mutability import TRANSITIONS
from .names import MAX_JOB_NAME
from .schema import cel

KEPT = ("type", "description", "default", "enum", "pattern", "required", "format")
BOUNDS = ("minLength", "maxLength", "minItems", "maxItems", "maxProperties", "additionalProperties")
EXTENSIONS = ("x-kubernetes-validations", "x-kubernetes-preserve-unknown-fields")

COLUMNS = (
    ("State", "string", ".status.state", 0),
    ("Reason", "string", ".status.reason", 0),
    ("Ready", "string", ".status.ready", 0),
    ("Restarts", "integer", ".status.restarts.total", 0),
    ("Step", "integer", ".status.step", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Loss", "string", ".status.loss", 1),
    ("Tokens/s", "integer", ".status.tokensPerSecond", 1),
    ("Message", "string", ".status.message", 1),
)


def structural(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """One schema node as Kubernetes wants it. `definitions` are the schema's $defs."""
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    if "anyOf" in node:
        (chosen,) = [option for option in node["anyOf"] if option.get("type") != "null"]
        node = {**structural(chosen, definitions), **{k: v for k, v in node.items() if k != "anyOf"}}
    if "allOf" in node:
        (chosen,) = node["allOf"]
        node = {**structural(chosen, definitions), **{k: v for k, v in node.items() if k != "allOf"}}
    result: dict[str, Any] = {key: node[key] for key in (*KEPT, *BOUNDS, *EXTENSIONS) if key in node}
    if isinstance(default := result.get("default"), dict):
        # The server fills {} from the defaults of its fields, but checks the default against the object's rules before.
        ruled = "x-kubernetes-validations" in result
        result["default"] = {k: v for k, v in default.items() if v is not None} if ruled else {}
    if result.get("default", 0) is None:
        del result["default"]
    if result.get("additionalProperties") is False:
        del result["additionalProperties"]
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if "properties" in node:
        result["properties"] = {name: structural(child, definitions) for name, child in node["properties"].items()}
    if "items" in node:
        result["items"] = structural(node["items"], definitions)
    return result


def model_schema(model: type[JobSpec] | type[JobStatus]) -> dict[str, Any]:
    raw = model.model_json_schema(by_alias=True, mode="validation", schema_generator=GenerateJsonSchema)
    return structural(raw, raw.get("$defs", {}))


def without_defaults(node: dict[str, Any]) -> dict[str, Any]:
    """For status: it is the operator's word, nothing of it is made up by the server."""
    result = {key: value for key, value in node.items() if key != "default"}
    if "properties" in result:
        result["properties"] = {name: without_defaults(child) for name, child in result["properties"].items()}
    if "items" in result:
        result["items"] = without_defaults(result["items"])
    return result


def custom_resource_definition() -> dict[str, Any]:
    name_rule = cel(
        f"self.metadata.name.size() <= {MAX_JOB_NAME}",
        f"metadata.name must not be longer than {MAX_JOB_NAME} characters: pod names are made from it; shorten it",
        ".metadata.name",
    )
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": model_schema(JobSpec),
            "status": without_defaults(model_schema(JobStatus)),
        },
        "x-kubernetes-validations": [name_rule, *TRANSITIONS],
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}
            for name, kind, path, priority in COLUMNS
        ],
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["dsj"],
                "categories": ["all", "training"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def main() -> None:
    print(json.dumps(custom_resource_definition(), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
