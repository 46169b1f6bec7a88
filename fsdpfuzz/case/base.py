"""What all parts of a case share: strict, frozen, slotted structs and bounded numbers."""

from __future__ import annotations

from functools import cache, partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

SCHEMA = 1
MAX_RANKS = 8

# Sizes are marked, so that a smaller model is found whatever its modules are: widths that are
# equal stay equal, counts go by themselves.
Width = Annotated[int, Meta(ge=1, le=16384, extra={"size": "width"})]
Count = Annotated[int, Meta(ge=1, le=64, extra={"size": "count"})]
Batch = Annotated[int, Meta(ge=1, le=65536)]
Seed = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Rank = Annotated[int, Meta(ge=0, lt=MAX_RANKS)]
Ranks = Annotated[int, Meta(ge=1, le=MAX_RANKS)]
Probability = Annotated[float, Meta(ge=0.0, le=0.9)]
Dtype = Literal["float32", "float16", "bfloat16"]
LOWER: tuple[Dtype, ...] = ("bfloat16", "float16")

_encoder = msgspec.json.Encoder()
_FQN = r"^[A-Za-z0-9_.]*$"
Name = Annotated[str, Meta(max_length=256, pattern=_FQN)]
# The two kinds of FQN are told apart in the types, so that whatever renames modules (a smaller
# model) finds every place that names one, also in a dimension that is added later.
ModulePath = Annotated[str, Meta(max_length=256, pattern=_FQN, extra={"names": "module"})]
ParameterName = Annotated[str, Meta(max_length=256, pattern=_FQN, extra={"names": "parameter"})]


class Part(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Base of everything in a case. Structs are slotted by construction.

    Defaults are left out of the JSON, so a field that is added later with a default
    changes neither the text nor the digest of the cases that exist already.

    Two are equal where their JSON is the same. As numbers ``True`` and ``1`` are equal, too;
    whatever is remembered of one of them (a digest, an anatomy) would then be taken for the
    other's.
    """

    def __post_init__(self) -> None:
        # What is left out of the JSON is the default itself, not what equals it.
        for name, default in _defaults(type(self)):
            value = getattr(self, name)
            if value is not default and type(value) is type(default) and value == default:
                msgspec.structs.force_setattr(self, name, default)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return NotImplemented
        return _encoder.encode(self) == _encoder.encode(other)

    # Python drops the hash of a class that defines __eq__ alone; equal JSON has equal fields.
    __hash__ = msgspec.Struct.__hash__


@cache
def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, object], ...]:
    """The fields with a default of which there can be two that are equal."""
    return tuple(
        (field.name, field.default)
        for field in msgspec.structs.fields(kind)
        if isinstance(field.default, float | int | str | Part)
    )


def remember_defaults() -> None:
    """Looks up now what else the first part of each kind would look up."""
    kinds: list[type[Part]] = [Part]
    for kind in kinds:
        _defaults(kind)
        kinds += kind.__subclasses__()


def default_of(kind: type[msgspec.Struct], field: str) -> object:
    """The default of a field; :data:`msgspec.NODEFAULT` where it has none."""
    found = _fields(kind)[field]
    if found.default_factory is not msgspec.NODEFAULT:
        return found.default_factory()
    return found.default


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """The fields by name. msgspec evaluates all annotations anew each time that it is asked."""
    return {field.name: field for field in msgspec.structs.fields(kind)}


def written(default: float) -> float:
    """A default that stands in the JSON even so, as the oldest cases have it."""
    return msgspec.field(default_factory=partial(float, default))


def ranks_in_words(number: int) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} rank{'s' * (number != 1)}"


def on(value: bool) -> str:
    """A flag as the value of a feature."""
    return "on" if value else "off"
