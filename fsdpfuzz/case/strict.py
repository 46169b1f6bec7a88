"""JSON of a given type, and in words what is wrong with it: where, and what would be right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from fsdpfuzz.errors import CaseError

T = TypeVar("T")

_AT_PATH = re.compile(r"(?P<reason>.*) - at (?:`key` in )?`(?P<path>\$.*)`", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")
_NO_VALUE = re.compile(r"Invalid (enum )?value ")
_NO_FIELD = "Object contains unknown field "


def decode_strictly(data: bytes, kind: type[T], source: str | None) -> T:
    """JSON of a given type; :class:`CaseError` with the path of what is wrong."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        found = _AT_PATH.fullmatch(str(error))
        reason, path = (found["reason"], found["path"]) if found else (str(error), "$")
        reason += _instead(data, kind, reason, path)
        raise CaseError(reason, path=path, source=source) from None
    except RecursionError:
        raise CaseError("nested too deeply to be a case", source=source) from None
    except ValueError as error:
        # DecodeError, UnicodeDecodeError, and what Python says of a number with too many digits.
        raise CaseError(f"not valid JSON: {error}", source=source) from None


def _instead(data: bytes, kind: Any, reason: str, path: str) -> str:
    """The names that a value, or a field of an object, can have; nothing of other mistakes."""
    if "[...]" in path:
        return ""  # some value of an object with names of its own
    steps = [step["name"] or int(step["index"]) for step in _STEP.finditer(path)]
    names: list[Any] = []
    try:
        if _NO_VALUE.match(reason):
            word, names = "can be", list(_values(*_followed(kind, data, steps[:-1]), steps[-1]))
        elif reason.startswith(_NO_FIELD):
            word, names = "has", list(_fields(*_followed(kind, data, steps)))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        # Read once more it may be another document, or none: with a name that stands there twice,
        # or with bytes that are no text, behind the mistake.
        return ""
    return f"; it {word} {', '.join(map(str, dict.fromkeys(names)))}" if names else ""


def _followed(kind: Any, data: bytes, steps: list[str | int]) -> tuple[list[inspect.Type], Any]:
    """The types that there can be at a path, and the value there."""
    # By the path in msgspec's message: its error has no attribute that says what was expected.
    types, value = list(_plain(_described(kind))), json.loads(data)
    for step in steps:
        types = [inner for outer in _of_tag(types, value) for inner in _inside(outer, step)]
        value = value[step]
    return types, value


# msgspec makes it anew each time, which takes a quarter of a second for a case.
@lru_cache(maxsize=16)
def _described(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _plain(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The type itself, or all of a union."""
    if isinstance(kind, inspect.Metadata):
        yield from _plain(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _plain(one)
    else:
        yield kind


def _of_tag(types: list[inspect.Type], value: Any) -> list[inspect.Type]:
    """Of the types of objects those whose tag the value has; all without a tag."""
    return [
        kind
        for kind in types
        if not isinstance(kind, inspect.StructType)
        or kind.tag_field is None
        or value.get(kind.tag_field, kind.tag) == kind.tag
    ]


def _inside(outer: inspect.Type, step: str | int) -> Iterator[inspect.Type]:
    if isinstance(outer, inspect.StructType):
        for field in outer.fields:
            if field.encode_name == step:
                yield from _plain(field.type)
    elif isinstance(outer, inspect.VarTupleType | inspect.ListType):
        yield from _plain(outer.item_type)
    elif isinstance(outer, inspect.TupleType) and isinstance(step, int):
        yield from _plain(outer.item_types[step])


def _values(types: list[inspect.Type], value: Any, step: str | int) -> Iterator[Any]:
    """What can be at a step: the tags there are, or the values of a closed list."""
    for outer in types:
        if isinstance(outer, inspect.StructType) and outer.tag_field == step:
            yield outer.tag
    for outer in _of_tag(types, value):
        for inner in _inside(outer, step):
            if isinstance(inner, inspect.LiteralType):
                yield from inner.values


def _fields(types: list[inspect.Type], value: Any) -> Iterator[str]:
    for outer in _of_tag(types, value):
        if isinstance(outer, inspect.StructType):
            if outer.tag_field is not None:
                yield outer.tag_field
            yield from (field.encode_name for field in outer.fields)
