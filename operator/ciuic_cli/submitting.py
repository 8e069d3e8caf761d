"""Reading and checking a job's file before it is sent, and explaining what the server then refuses. Pure."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from ciuic_api import API_VERSION, KIND
from ciuic_api.job import JobSpec
from ciuic_api.names import ANNOTATION_CHECKPOINT_PATH, MAX_JOB_NAME
from ciuic_api.training import Training

from .cluster import PATHS
from .errors import CliError, Refused

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Submission:
    documents: tuple[Json, ...]
    """In the order in which they are applied: what a job reads before the job."""
    warnings: tuple[str, ...] = ()

    @property
    def jobs(self) -> tuple[Json, ...]:
        return tuple(document for document in self.documents if document["kind"] == KIND)


def read(text: str, file: str) -> Submission:
    """Raises CliError with one sentence for what can be known without the server."""
    try:
        found = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise CliError(f"{file}{where} is no YAML: {getattr(error, 'problem', None) or error}") from error
    documents = [_known(document, file) for document in found]
    warnings: list[str] = []
    for document in documents:
        if document["kind"] == KIND:
            warnings += check(document, file)
    if not any(document["kind"] == KIND for document in documents):
        raise CliError(f"{file} holds no {KIND}; `kubectl apply -f {file}` applies other things")
    return Submission(
        documents=tuple(sorted(documents, key=lambda document: document["kind"] == KIND)), warnings=tuple(warnings)
    )


def _known(document: Any, file: str) -> Json:
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        raise CliError(f"{file} holds a document that is no Kubernetes object: it needs apiVersion, kind and metadata")
    kind, version = document.get("kind"), document.get("apiVersion")
    if kind == KIND and version != API_VERSION:
        raise CliError(f"{file}: apiVersion is {version!r}; write {API_VERSION}")
    if (version, kind) not in PATHS:
        raise CliError(f"{file}: submit applies a {KIND}, ConfigMaps and Secrets; apply the {kind} with kubectl")
    name = document["metadata"].get("name")
    if not isinstance(name, str) or not name:
        raise CliError(f"{file}: metadata.name of the {kind} is missing; give it a name")
    return document


def check(job: Json, file: str) -> list[str]:
    """Warnings; raises CliError for what the server would refuse as well. It has the last word: it may be newer."""
    name, spec = job["metadata"]["name"], job.get("spec")
    if len(name) > MAX_JOB_NAME:
        raise CliError(
            f"{file}: metadata.name has {len(name)} characters and must not have more than {MAX_JOB_NAME}:"
            " pod names are made from it; shorten it"
        )
    if not isinstance(spec, dict):
        raise CliError(f"{file}: spec is missing; see docs/api.md")
    try:
        JobSpec.model_validate(spec)
    except ValidationError as error:
        mistakes = error.errors()
        wrong = [mistake for mistake in mistakes if mistake["type"] != "extra_forbidden"]
        if wrong:
            raise CliError("\n".join(f"{file}: {_mistake(mistake)}" for mistake in wrong)) from error
        return [_unknown(mistake["loc"]) for mistake in mistakes]
    return []


def training(job: Json) -> Training | None:
    """Of a job without mistakes; None for one with a command."""
    found = JobSpec.model_validate(job["spec"]).training
    return found.resolved() if found is not None else None


def _mistake(mistake: Mapping[str, Any]) -> str:
    field = _dotted(mistake["loc"])
    if mistake["type"] == "missing":
        return f"{field} is missing; see docs/api.md"
    return f"{field} is {mistake['input']!r}: {mistake['msg'][0].lower()}{mistake['msg'][1:]}"


def _unknown(location: tuple[int | str, ...]) -> str:
    known = _fields_at(location[:-1])
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{_dotted(location)} is a field that this tool does not know{hint}"


def _fields_at(location: Iterable[int | str]) -> list[str]:
    """Names of the fields beside an unknown one."""
    model: type[BaseModel] | None = JobSpec
    for part in location:
        if model is None:
            return []
        model = next(
            (_model_of(info.annotation) for n, info in model.model_fields.items() if part in (n, info.alias)), None
        )
    return [info.alias or name for name, info in model.model_fields.items()] if model else []


def _model_of(annotation: Any) -> type[BaseModel] | None:
    candidates = (annotation, *getattr(annotation, "__args__", ()))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _dotted(location: Iterable[int | str]) -> str:
    return "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def explain(error: Refused, document: Json) -> str:
    """The server's refusal in the words of the person who wrote the file."""
    label = (document["metadata"].get("labels") or {}).get(ANNOTATION_CHECKPOINT_PATH)
    if label and any(field.startswith("metadata.labels") for field, _ in error.causes):
        return (
            f"the API server refuses the label {ANNOTATION_CHECKPOINT_PATH}: a URL is no legal label value, and this"
            " cluster lacks the chart's admission policy that turns it into spec.checkpoint.path (it needs Kubernetes 1.36"
            f" and policies.install).\nWrite instead:\n\n  spec:\n    checkpoint:\n      path: {label}\n"
        )
    if error.code == 409:
        return "\n".join(_conflict(field, message) for field, message in error.causes) or str(error)
    if error.code == 403 and not error.causes:
        return f"you may not do this: {error}"
    told = [
        _told(field, message)
        for field, message in error.causes
        if "some validation rules were not checked" not in message
    ]
    return "\n".join(told) or _policy(str(error))


def _conflict(field: str, message: str) -> str:
    other = message.partition('"')[2].partition('"')[0] or "somebody else"
    return f"{field.lstrip('.')} was last set by {other}; use --force-conflicts to set it all the same"


def _told(field: str, message: str) -> str:
    """`Invalid value: -1: nodes must be ...` as `spec.nodes is -1: nodes must be ...`."""
    head, _, rest = message.partition(": ")
    if head == "Invalid value" and rest:
        value, separator, sentence = rest.partition(": ")
        plain = separator and value not in ("", "object", "null") and " " not in value
        return f"{field} is {value}: {sentence}" if plain else _sentence_of(rest)
    if head == "Required value":
        return f"{field} is missing"
    return _policy(f"{field}: {message}" if field and field != "<nil>" else message)


def _sentence_of(rest: str) -> str:
    return rest.removeprefix('"object": ').removeprefix("object: ")


def _policy(message: str) -> str:
    """Only the sentence of an admission policy, without who denied what."""
    _, marker, sentence = message.partition("denied request: ")
    return sentence if marker else message
