"""JSON Schema by the `jsonschema` library: the draft that `$schema` names, else 2020-12.

References are looked up in the schema itself and among the metaschemas, and never fetched. `format` is an annotation
and asserts nothing, as the draft has it. A `pattern` runs on Python's `re`, and backtracks without end if it can.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from draftgate.errors import WorkloadError, require
from draftgate.quality.judgement import Finding

if TYPE_CHECKING:
    from jsonschema.protocols import Validator
    from referencing.jsonschema import Schema

__all__ = ["MAX_FINDINGS", "check_schema", "plain", "schema_findings"]

MAX_FINDINGS = 10


def schema_findings(schema: Mapping[str, Any] | bool, value: Any) -> list[Finding]:
    """Where a JSON value breaks a schema, at most `MAX_FINDINGS`; each message begins with the path.

    >>> schema_findings({"properties": {"n": {"type": "integer"}}}, {"n": "x"})[0].message
    "$.n: 'x' is not of type 'integer'"

    Raises:
        WorkloadError: the schema is none; see `check_schema`.
    """
    validator = _validator_of(schema)
    try:
        return [
            _finding(error.json_path, error.message) for error in islice(validator.iter_errors(value), MAX_FINDINGS)
        ]
    except RecursionError:
        _refuse_loops(validator)
        return [Finding("depth", "nested deeper than the schema can be followed")]


def check_schema(schema: Mapping[str, Any] | bool) -> None:
    """Refuse what is no usable schema.

    Raises:
        WorkloadError: not JSON, breaks its metaschema, has a reference that leads nowhere or to another document, or
            refers to itself without end.
    """
    _validator_of(schema)


def plain(value: Any) -> Any:
    """A value of YAML or TOML as JSON would have it: keys are text, dates and bytes are text, sets are lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _finding(path: str, message: str) -> Finding:
    return Finding("schema", f"{path[:100]}: {message}"[:200])


def _validator_of(schema: Mapping[str, Any] | bool) -> "Validator":
    try:
        return _validator(json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise WorkloadError(f"the schema is not JSON: {error}") from error


@lru_cache(64)
def _validator(schema: str) -> "Validator":
    """By the schema's text: one schema judges many outputs."""
    library = require("jsonschema", "quality")
    contents = json.loads(schema)
    kind = _draft(contents)
    try:
        kind.check_schema(contents)
    except library.SchemaError as error:
        raise WorkloadError(f"the schema breaks JSON Schema at {error.json_path}: {error.message[:200]}") from error
    except RecursionError as error:
        raise WorkloadError("the schema is nested too deeply") from error
    registry = require("jsonschema_specifications", "quality").REGISTRY  # with it, nothing is fetched
    _check_references(contents, kind, registry)
    validator: Validator = kind(contents, registry=registry)
    _refuse_loops(validator)
    return validator


def _draft(schema: Any) -> "type[Validator]":
    validators = require("jsonschema", "quality").validators
    kind: type[Validator] | None = validators.validator_for(schema, default=None)
    if kind is not None:
        return kind
    if isinstance(schema, Mapping) and "$schema" in schema:
        raise WorkloadError(
            f"the schema's $schema, {str(schema['$schema'])[:100]!r}, is no draft known here; "
            "2020-12 is 'https://json-schema.org/draft/2020-12/schema'"
        )
    newest: type[Validator] = validators.Draft202012Validator
    return newest


def _check_references(contents: Any, kind: "type[Validator]", registry: Any) -> None:
    """Look up every reference, so that a bad one is told at once and not at the first output that meets it."""
    specification = require("referencing.jsonschema", "quality").specification_with(kind.META_SCHEMA["$schema"])
    root = specification.create_resource(contents)
    places = [(root, registry.resolver_with_root(root))]
    while places:
        resource, resolver = places.pop()
        for reference in _references(resource.contents):
            try:
                resolver.lookup(reference)
            except require("referencing.exceptions", "quality").Unresolvable as error:
                raise WorkloadError(
                    f"the schema's reference {reference[:100]!r} leads nowhere; put what it means under '$defs': "
                    "other documents are not fetched"
                ) from error
        places += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]


def _references(contents: "Schema") -> Iterator[str]:
    if isinstance(contents, Mapping):
        found = (contents.get(key) for key in ("$ref", "$dynamicRef"))
        yield from (reference for reference in found if isinstance(reference, str))


_PROBES: tuple[Any, ...] = (None, False, 0, "", [], {})


def _refuse_loops(validator: "Validator") -> None:
    try:
        for probe in _PROBES:
            validator.is_valid(probe)
    except RecursionError as error:
        raise WorkloadError("the schema refers to itself without end") from error
