"""Case to JSON and back: readable, strict, with a digest that is the same on every machine."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

import msgspec

from fsdpfuzz.case.base import SCHEMA
from fsdpfuzz.case.check import check
from fsdpfuzz.case.spec import CaseSpec
from fsdpfuzz.case.strict import decode_strictly
from fsdpfuzz.errors import CaseError, ContractError

MAX_FILE_BYTES = 1 << 20

_encoder = msgspec.json.Encoder()


def encode(case: CaseSpec) -> bytes:
    """The canonical JSON of a case, one line; what the digest is taken of."""
    return _encoder.encode(case)


def pretty(case: CaseSpec) -> str:
    """The JSON of a case as a person reads and edits it."""
    return msgspec.json.format(msgspec.json.encode(as_document(case)), indent=2).decode() + "\n"


def as_document(case: CaseSpec) -> dict[str, object]:
    """The case as builtins, the schema version first, defaults left out."""
    document = msgspec.to_builtins(case)
    if not isinstance(document, dict):
        raise ContractError(f"a case became {type(document).__name__}, not an object")
    # Put in by hand: the field has its default, and defaults are left out.
    return {"schema": SCHEMA, **document}


def decode(data: bytes, *, source: str | None = None) -> CaseSpec:
    """A checked case from JSON; :class:`CaseError` with the path of what is wrong."""
    case = decode_strictly(data, CaseSpec, source)
    try:
        check(case)
    except CaseError as error:
        raise error.at(source) if source else error from None
    return case


def load(path: Path) -> CaseSpec:
    """A checked case from a file of at most 1 MiB."""
    return decode(read_bounded(path), source=os.fspath(path))


def read_bounded(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes, or :class:`CaseError`."""
    source = os.fspath(path)
    try:
        # Before it is opened: a named pipe without a writer would block for ever.
        if not path.is_file():
            raise CaseError("no such file" if not path.exists() else "not a file", source=source)
        with path.open("rb") as file:
            # Not the size that the file system tells: the file may grow, and those of /proc have
            # none.
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise CaseError(f"cannot be read: {error}", source=source) from None
    if len(data) > limit:
        raise CaseError(f"larger than {limit} bytes, no case is", source=source)
    return data


@lru_cache(maxsize=64)
def digest(case: CaseSpec) -> str:
    """16 hexadecimal digits that name the case, equal across processes and machines."""
    return hashlib.sha256(encode(case)).hexdigest()[:16]
