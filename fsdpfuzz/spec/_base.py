"""What all parts of a case share: strict, frozen, slotted structs and bounded numbers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

SCHEMA = 1

Width = Annotated[int, Meta(ge=1, le=16384)]
Count = Annotated[int, Meta(ge=1, le=64)]
Batch = Annotated[int, Meta(ge=1, le=65536)]
Seed = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Rank = Annotated[int, Meta(ge=0, le=7)]
Name = Annotated[str, Meta(max_length=256, pattern=r"^[A-Za-z0-9_.]*$")]


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
    """
