"""``share_comm_ctx`` of fsdp2: roots that issue their collectives from the same streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Dimension, Feature, Simpler
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Items, Value, call
from fsdpfuzz.case.sides import unit_module
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

FUNCTION = "share_comm_ctx"


class ShareCommCtxDimension(Dimension):
    """Whether root modules share their streams, as the stages of a pipeline do."""

    name = "share_comm_ctx"
    newer: ClassVar[tuple[str, ...]] = (f"{FUNCTION}()",)
    features: ClassVar[Mapping[str, Feature]] = {
        "share_comm_ctx": Feature(
            about="on when root modules share their streams (fsdp2 only)",
            group="Wrapping",
            # Seldom is a model wrapped without a root: no pair is waited for.
            values=("off",),
            open=True,
            apis=("fsdp2",),
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether they do."""
        if not a.fsdp1:
            yield "share_comm_ctx", on(a.case.share_comm_ctx)

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """That they do."""
        if case.share_comm_ctx:
            yield "streams", "shared by all roots"

    def asked(self, a: Anatomy) -> bool:
        """Where they do."""
        return a.case.share_comm_ctx

    def check(self, a: Anatomy) -> None:
        """It is a function of fsdp2, and one root has nobody to share with."""
        if not a.case.share_comm_ctx:
            return
        if a.fsdp1:
            raise CaseError("an option of fsdp2 alone", path="$.share_comm_ctx")
        if len(a.roots) < 2:
            raise CaseError("it takes two units at least without one around them", path="$.plan")

    def told(self, a: Anatomy, root: Value) -> Iterator[Do]:
        """All roots in one call, when the last of them is told."""
        last = Inside("model", a.roots[-1]) if a.roots[-1] else MODEL
        if a.case.share_comm_ctx and len(a.roots) > 1 and root == last:
            listed = Items("list", tuple(unit_module(a, path) for path in a.roots))
            yield Do(call=call(f"torch.distributed.fsdp.{FUNCTION}", listed), who="fsdp")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Each root its own."""
        if case.share_comm_ctx:
            yield Simpler(msgspec.structs.replace(case, share_comm_ctx=False), FUNCTION)
