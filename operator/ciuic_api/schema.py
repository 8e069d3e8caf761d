"""The base of every API model: camelCase outside, snake_case inside, unknown fields refused, values frozen."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Schema(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    def to_json(self) -> dict[str, Any]:
        """As the API server holds it: camelCase, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def cel(rule: str, message: str, field_path: str | None = None) -> dict[str, str]:
    """One x-kubernetes-validations entry. `message` names field and remedy; `rule` sees the value as `self`."""
    entry = {"rule": rule, "message": message}
    if field_path is not None:
        entry["fieldPath"] = field_path
    return entry


def rules(*entries: dict[str, str]) -> dict[str, Any]:
    """For json_schema_extra."""
    return {"x-kubernetes-validations": list(entries)}


def bounded(field: str, low: int | float, high: int | float, remedy: str) -> Any:
    """A number from `low` to `high`, as a CEL rule: the server's own `minimum` would not say what to do instead."""
    message = f"{field} must be from {low} to {high}; {remedy}"
    return Field(json_schema_extra=rules(cel(f"self >= {_literal(low)} && self <= {_literal(high)}", message)))


def _literal(number: int | float) -> str:
    return str(number) if isinstance(number, int) else repr(float(number))


Name = Annotated[str, Field(min_length=1, max_length=253)]
Quantity = Annotated[
    str,
    Field(max_length=32),
    Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"),
]
"""A Kubernetes quantity, for example 512Mi."""

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15} | {
    f"{letter}i": 1024 ** (power + 1) for power, letter in enumerate("KMGTP")
}


def quantity_bytes(text: str) -> int:
    """Bytes of a quantity such as 512Mi, rounded up. Raises ValueError on anything else."""
    digits = text.rstrip("kKMGTPim")
    unit = text[len(digits) :]
    if unit == "m":
        return -(-int(float(digits)) // 1000)
    if unit not in _UNITS:
        raise ValueError(f"{text!r} is not a quantity; write for example 512Mi or 4Gi")
    return int(-(-float(digits) * _UNITS[unit] // 1))
