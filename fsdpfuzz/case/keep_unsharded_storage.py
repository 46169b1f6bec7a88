"""``set_keep_unsharded_storage`` of fsdp2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.recipe import Do, Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

METHOD = "set_keep_unsharded_storage"


class KeepUnshardedStorageDimension(Dimension):
    """Whether the memory of whole parameters is kept when units are sharded again."""

    name = "keep_unsharded_storage"
    newer: ClassVar[tuple[str, ...]] = (f"FSDPModule.{METHOD}()",)
    features: ClassVar[Mapping[str, Feature]] = {
        "keep_unsharded_storage": Feature(
            about="on when the memory of whole parameters is kept (fsdp2 only)",
            group="Sharding",
            values=ON,
            apis=("fsdp2",),
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether it is."""
        if not a.fsdp1:
            yield "keep_unsharded_storage", on(a.case.keep_unsharded_storage)

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """That it is."""
        if case.keep_unsharded_storage:
            yield "whole parameters", "their memory is kept"

    def asked(self, a: Anatomy) -> bool:
        """Where it is kept."""
        return a.case.keep_unsharded_storage

    def check(self, a: Anatomy) -> None:
        """It is an option of fsdp2."""
        if a.fsdp1 and a.case.keep_unsharded_storage:
            raise CaseError("an option of fsdp2 alone", path="$.keep_unsharded_storage")

    def told(self, a: Anatomy, root: Value) -> Iterator[Do]:
        """All units at once."""
        if a.case.keep_unsharded_storage:
            yield Do(call=call(f".{METHOD}", root, True), who="fsdp")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Not kept."""
        if case.keep_unsharded_storage:
            yield Simpler(msgspec.structs.replace(case, keep_unsharded_storage=False), METHOD)
