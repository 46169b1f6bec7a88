"""Follows modules that were renamed through everything in a case that names one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import inspect

from fsdpfuzz.case import CaseSpec

Rename: TypeAlias = Callable[[str], str | None]
"""The new name of what had an old one; None for what is gone."""

Kind = Literal["module", "parameter"]


class _GoneError(Exception):
    """What a struct is about is gone, and the struct with it."""


def renamed(case: CaseSpec, module: Rename, parameter: Rename) -> CaseSpec | None:
    """The case with other FQNs; what names a thing that is gone is left out.

    Which fields hold FQNs, and of what, their types say (``ModulePath``, ``ParameterName`` in
    ``case/base.py``). None where the case cannot do without what is gone.
    """
    by: dict[str, Rename] = {"module": module, "parameter": parameter}
    try:
        made: CaseSpec = _struct(case, by)
    except _GoneError:
        return None
    return made


def _struct(value: Any, by: dict[str, Rename]) -> Any:
    changed: dict[str, Any] = {}
    for name, kind, required in _named_fields(value.__class__):
        old = getattr(value, name)
        new = _value(old, kind, by)
        if new is None and old is not None:
            raise _GoneError
        if old and new == () and required:
            raise _GoneError  # it is about these names, of which none is left
        if new is not old:
            changed[name] = new
    return msgspec.structs.replace(value, **changed) if changed else value


def _value(value: Any, kind: Kind | None, by: dict[str, Rename]) -> Any:
    if isinstance(value, str):
        return by[kind](value) if kind is not None else value
    if isinstance(value, msgspec.Struct):
        return _struct(value, by)
    if isinstance(value, tuple):
        kept = []
        for item in value:
            try:
                new = _value(item, kind, by)
            except _GoneError:
                continue
            # Two modules may have become one, which is then named once.
            if new is not None and (kind is None or new not in kept):
                kept.append(new)
        return value if len(kept) == len(value) and all(map(_is, kept, value)) else tuple(kept)
    return value


def _is(new: Any, old: Any) -> bool:
    return new is old or (isinstance(new, str) and new == old)


@cache
def _named_fields(kind: type[object]) -> tuple[tuple[str, Kind | None, bool], ...]:
    """The fields of a struct that hold FQNs, or structs that may, and which it needs."""
    info = inspect.type_info(kind)
    if not isinstance(info, inspect.StructType):
        return ()
    # Nodes name nothing; they are what is renamed.
    return tuple(
        (field.name, _kind(field.type), field.required)
        for field in info.fields
        if field.name != "model" and (_kind(field.type) is not None or _holds_structs(field.type))
    )


@cache
def size_fields(kind: type[object], size: Literal["width", "count"]) -> tuple[str, ...]:
    """The fields of a struct whose type says that they are such a size (see ``case/base.py``)."""
    info = inspect.type_info(kind)
    if not isinstance(info, inspect.StructType):
        return ()
    return tuple(
        field.name
        for field in info.fields
        if isinstance(field.type, inspect.Metadata) and (field.type.extra or {}).get("size") == size
    )


def _kind(info: inspect.Type) -> Kind | None:
    match info:
        case inspect.Metadata(type=inner, extra=extra):
            names = (extra or {}).get("names")
            return names if names in ("module", "parameter") else _kind(inner)
        case inspect.VarTupleType(item_type=inner):
            return _kind(inner)
        case inspect.UnionType(types=types):
            return next((kind for inner in types if (kind := _kind(inner)) is not None), None)
        case _:
            return None


def _holds_structs(info: inspect.Type) -> bool:
    match info:
        case inspect.Metadata(type=inner) | inspect.VarTupleType(item_type=inner):
            return _holds_structs(inner)
        case inspect.UnionType(types=types):
            return any(_holds_structs(inner) for inner in types)
        case inspect.StructType():
            return True
        case _:
            return False
