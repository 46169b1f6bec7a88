"""Cases that are written by hand: the schema, a case to start from, and reducing."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from fsdpfuzz.case import CaseSpec, decode, encode, pretty
from fsdpfuzz.cli._write import schema_document
from fsdpfuzz.corpus import find_entries, read_entry
from tests.acceptance.standin_program import call
from tests.unit.loop.standins import make_case, outs_of

CORPUS = Path(__file__).resolve().parents[2] / "corpus"


def faults(value: Any, schema: dict[str, Any], parts: dict[str, Any], path: str = "$") -> list[str]:
    """What is wrong with a document, by the part of JSON Schema that our schema is made of."""
    if "$ref" in schema:
        return faults(value, parts[schema["$ref"].removeprefix("#/$defs/")], parts, path)
    if "anyOf" in schema:
        options = schema["anyOf"]
        if "discriminator" in schema:
            kind = schema["discriminator"]
            name = kind["mapping"].get(value.get(kind["propertyName"]))
            options = [{"$ref": name}] if name else []
        found = [faults(value, option, parts, path) for option in options]
        return (
            [] if [] in found else [f"{path}: is none of {len(options)}", *itertools.chain(*found)]
        )
    if "if" in schema:
        then = not faults(value, schema["if"], parts, path)
        return faults(value, schema["then" if then else "else"], parts, path)
    unknown = schema.keys() - KNOWN_WORDS
    assert not unknown, f"the schema has {unknown}, which is not looked at here"
    wrong = []
    if "enum" in schema and value not in schema["enum"]:
        wrong.append(f"{path}: {value!r} is not among {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        wrong.append(f"{path}: {value!r} is not {schema['const']!r}")
    if "type" in schema and not isinstance(value, TYPES[schema["type"]]):
        return [f"{path}: {value!r} is no {schema['type']}"]
    if isinstance(value, dict):
        own, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        wrong += [f"{path}: no {name}" for name in schema.get("required", ()) if name not in value]
        for name, inner in value.items():
            if name in own:
                wrong += faults(inner, own[name], parts, f"{path}.{name}")
            elif others is False:
                wrong.append(f"{path}: unknown {name}")
            elif isinstance(others, dict):
                wrong += faults(inner, others, parts, f"{path}.{name}")
    if isinstance(value, list):
        items, first = schema.get("items", True), schema.get("prefixItems", [])
        for i, inner in enumerate(value):
            inner_schema = first[i] if i < len(first) else items
            if isinstance(inner_schema, dict):
                wrong += faults(inner, inner_schema, parts, f"{path}[{i}]")
    return wrong


TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
KNOWN_WORDS = {
    *("title", "description", "type", "properties", "required", "additionalProperties", "items"),
    *("enum", "const", "default", "minimum", "maximum", "minLength", "maxLength", "pattern"),
    *("minItems", "maxItems", "prefixItems", "$defs", "$schema", "exclusiveMinimum"),
    *("exclusiveMaximum", "multipleOf", "minProperties", "maxProperties", "propertyNames"),
}


def wrong_with(document: Any) -> list[str]:
    schema = schema_document()
    return faults(document, schema, schema["$defs"])


def test_every_saved_case_fits_the_schema() -> None:
    paths = list(find_entries([CORPUS]))
    assert len(paths) > 50
    for path in paths:
        assert wrong_with(json.loads(path.read_text())) == [], path
        assert wrong_with(json.loads(pretty(read_entry(path).case))) == [], path


@pytest.mark.parametrize(
    "change",
    [
        {"world_sizes": 2},
        {"world_size": "two"},
        {"program": [{"kind": "forwards"}]},
        {"model": {"kind": "linear", "out": 3, "out_features": 3}},
        {"model": {"kind": "linear"}},
        {"plan": {"api": "fsdp3", "units": []}},
        {"schema": 7},
    ],
)
def test_the_schema_refuses_what_a_reader_refuses(change: dict[str, Any]) -> None:
    good = json.loads(pretty(make_case()))
    assert wrong_with(good) == []
    assert wrong_with({**good, **change}) != []


def test_a_new_case_is_explained_and_run(program: list[str]) -> None:
    folder = Path(program[1]).parent
    for api in ("fsdp1", "fsdp2"):
        name = f"{api}.json"
        arguments = ("new", "--api", api, "--world-size", "3", "-o", name)
        assert call(program, *arguments).returncode == 0
        assert (decode((folder / name).read_bytes()).api, wrong_with(read(folder / name))) == (
            api,
            [],
        )
        assert "linear 3→4  [unit]" in call(program, "explain", name, LC_ALL="C.UTF-8").stdout
        assert f"{name}: passed" in call(program, "replay", name).stdout
    again = call(program, "new", "-o", name)
    assert again.returncode == 2
    assert again.stderr == f"fsdpfuzz: -o: {name}: is there already; name another file\n"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_schema_is_printed(program: list[str]) -> None:
    done = call(program, "schema")
    assert json.loads(done.stdout.partition("\npools closed")[0]) == json.loads(
        json.dumps(schema_document())
    )


def save(program: list[str], case: CaseSpec) -> Path:
    path = Path(program[1]).parent / "case.json"
    path.write_text(pretty(case))
    return path


@pytest.mark.parametrize(("mode", "known"), [("fault", ""), ("known", " (known as K1)")])
def test_any_case_is_reduced(program: list[str], mode: str, known: str) -> None:
    case = make_case((7, 300, 9), steps=3)
    path = save(program, case)
    done = call(program, "minimize", "case.json", mode=mode)
    assert done.returncode == 0, done.stderr
    entry = read_entry(path.with_name("case-minimal.json"))
    assert outs_of(entry.case) == (101,)
    assert entry.found is not None
    assert (entry.found.key, entry.found.finding is None) == ("big/mismatch/fsdp2", False)
    told = done.stdout.splitlines()[0]
    sizes = f"{len(encode(case))} -> {len(encode(entry.case))} bytes in {entry.found.shrink_steps}"
    assert told == f"case-minimal.json: {sizes} steps, big/mismatch/fsdp2{known}"
    assert read_entry(path).case == case, "the case itself stays"


@pytest.mark.parametrize("option", ["--max-seconds", "--seconds"])
def test_the_time_limit_is_called_as_that_of_run(program: list[str], option: str) -> None:
    save(program, make_case((700,)))
    assert call(program, "minimize", "case.json", option, "60", mode="fault").returncode == 0
    done = call(program, "minimize", "case.json", option, "0", mode="fault")
    assert done.returncode == 2
    assert done.stderr.startswith("fsdpfuzz: --max-seconds: '0' is not a number of seconds")


def test_a_case_that_shows_nothing_is_not_reduced(program: list[str]) -> None:
    save(program, make_case((7,)))
    done = call(program, "minimize", "case.json", "-o", "small.json", mode="fault")
    assert done.returncode == 2
    here = "on torch 9.9.9, gloo, the case"
    assert done.stderr == f"fsdpfuzz: case.json: {here} shows nothing to reduce for: passed\n"
    save(program, make_case((700,)))
    done = call(program, "minimize", "case.json", "--finding", "small/x", mode="fault")
    assert done.returncode == 2
    assert "the case shows big/mismatch/fsdp2, not small/x" in done.stderr
