import random
from datetime import date
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from draftgate.errors import WorkloadError
from draftgate.quality.schema import MAX_FINDINGS, check_schema, plain, schema_findings

SCHEMAS: list[Any] = [
    True,
    False,
    {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 0}}},
    {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}, "maxItems": 3},
    {"type": "array", "uniqueItems": True, "contains": {"const": 1}},
    {"enum": [1, "a", None, [1], {"a": 1}]},
    {"anyOf": [{"type": "string", "pattern": "^a"}, {"type": "number", "multipleOf": 0.5}]},
    {"oneOf": [{"minimum": 1}, {"maximum": 1}], "not": {"const": 2}},
    {"if": {"type": "object"}, "then": {"minProperties": 1}, "else": {"maxLength": 1}},
    {"$defs": {"n": {"type": ["object", "null"], "properties": {"b": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
    {"properties": {"a": True}, "patternProperties": {"^b": {"type": "boolean"}}, "unevaluatedProperties": False},
    {"additionalProperties": {"type": "number"}, "propertyNames": {"maxLength": 1}, "dependentRequired": {"a": ["b"]}},
]


def value(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.randrange(8 if depth else 6)
    if kind == 6:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return {rng.choice("abc"): value(rng, depth - 1) for _ in range(rng.randrange(4))}
    return [None, True, rng.randrange(-1, 4), rng.choice((0.5, 1.0, 1.3)), rng.choice(("", "a", "bc")), 1][kind]


def test_agrees_with_jsonschema() -> None:
    rng = random.Random(0)
    verdicts = []
    for schema in SCHEMAS:
        real = Draft202012Validator(schema)
        for _ in range(200):
            instance = value(rng)
            verdicts.append(real.is_valid(instance))
            assert (not schema_findings(schema, instance)) is verdicts[-1], (schema, instance)
    assert len(verdicts) >= 2000
    assert 500 < sum(verdicts) < len(verdicts) - 500


def test_findings_name_the_place_and_are_few_and_short() -> None:
    (finding,) = schema_findings({"items": {"properties": {"n": {"type": "integer"}}}}, [{"n": 1}, {"n": "x"}])
    assert (finding.kind, finding.message) == ("schema", "$[1].n: 'x' is not of type 'integer'")
    many = schema_findings({"items": {"type": "string"}}, list(range(100_000)))
    assert len(many) == MAX_FINDINGS
    assert len(schema_findings({"type": "string"}, ["x" * 10_000])[0].message) <= 200


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#/$defs/none"}, "'#/\\$defs/none' leads nowhere"),
        ({"properties": {"a": {"$ref": "http://localhost/schema.json"}}}, "are not fetched"),
        ({"$ref": "other.json#/a"}, "leads nowhere"),
        ({"$dynamicRef": "#nope"}, "leads nowhere"),
        ({"type": "strin"}, "breaks JSON Schema at \\$.type"),
        ({"properties": {"a": {"minimum": "1"}}}, "breaks JSON Schema at \\$.properties.a.minimum"),
        ({"pattern": "("}, "breaks JSON Schema"),
        ({"$schema": "http://example.org/own"}, "is no draft known here"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, "refers to itself without end"),
        ({"const": {1, 2}}, "is not JSON"),
    ],
)
def test_a_bad_schema_is_the_task_s_fault(schema: Any, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"$ref": {"type": "string"}}, "const": {"$ref": "nowhere"}},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}, "$ref": "#/definitions/a"},
        {"$id": "https://example.org/a", "$defs": {"b": {"$anchor": "b"}}, "$ref": "#b"},
    ],
)
def test_what_only_looks_like_a_bad_reference(schema: Any) -> None:
    check_schema(schema)


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("socket.socket", refuse)
    with pytest.raises(WorkloadError):
        check_schema({"$ref": "http://localhost:1/a.json"})


def test_a_value_deeper_than_the_schema_can_be_followed() -> None:
    deep: list[Any] = []
    for _ in range(2_000):
        deep = [deep]
    assert schema_findings({"items": {"$ref": "#"}}, deep)[0].kind == "depth"


def test_values_of_other_formats_as_json_has_them() -> None:
    assert plain({1: date(2024, 2, 29), "b": {2}, None: b"x"}) == {"1": "2024-02-29", "b": [2], "None": "x"}
