"""Who finishes a backward of fsdp2: FSDP, or the program by ``finalize_backward``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fsdpfuzz.case.dimension import Dimension, Feature, Simpler
from fsdpfuzz.case.micro_batches import defers_all_reduce, some_defer
from fsdpfuzz.case.operations.forward import calls_below_the_root
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

Finalization = Literal["automatic", "manual", "async"]

_METHOD = "set_manual_backward_finalization"


class FinalizationDimension(Dimension):
    """Automatic, or by the program, which waits at once or by a handle."""

    name = "finalization"
    newer: ClassVar[tuple[str, ...]] = (
        f"FSDPModule.{_METHOD}()",
        "FSDPModule.finalize_backward(async_op)",
    )
    features: ClassVar[Mapping[str, Feature]] = {
        "finalization": Feature(
            about="automatic, manual, async: how a backward is finished (fsdp2 only)",
            group="Training",
            values=("automatic", "manual", "async"),
            apis=("fsdp2",),
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Which of them."""
        if not a.fsdp1:
            yield "finalization", a.case.finalization

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Where the program does it."""
        if case.finalization != "automatic":
            words = {"manual": "finalize_backward()", "async": "finalize_backward(async_op=True)"}
            yield "backward ends by", words[case.finalization]

    def asked(self, a: Anatomy) -> bool:
        """Where the program does it."""
        return a.case.finalization != "automatic"

    def check(self, a: Anatomy) -> None:
        """It is an option of fsdp2, of root modules; a unit that is called alone becomes one."""
        case, at = a.case, "$.finalization"
        if case.finalization == "automatic":
            return
        if a.fsdp1:
            raise CaseError("an option of fsdp2 alone", path=at)
        # ``FSDPState._lazy_init`` makes the first module that runs forward the root.
        if calls_below_the_root(case.program):
            raise CaseError("it goes with no forward of a part of the model", path=at)
        if defers_all_reduce(case):
            # FSDPModule.finalize_backward: "Partial gradient reduction for replicate() and HSDP
            # is not supported. Enable all-reduce before finalization."
            raise CaseError("it goes with no deferred all-reduce", path=at)
        if case.finalization == "async" and case.share_comm_ctx:
            # FSDPModule.finalize_backward: "Asynchronous gradient finalization cannot overlap work
            # from another FSDP root sharing the communication context": all roots end one backward.
            raise CaseError("a handle goes with no share_comm_ctx", path=at)
        # Of a backward that reduces for some units only, the program does not know how it ends.
        if some_defer(case):
            raise CaseError("it goes with no units that alone put off their reduction", path=at)

    def told(self, a: Anatomy, root: Value) -> Iterator[Do]:
        """Each root module."""
        if a.case.finalization != "automatic":
            yield Do(call=call(f".{_METHOD}", root, True), who="fsdp")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Automatic; without a handle."""
        if case.finalization != "automatic":
            yield Simpler(msgspec.structs.replace(case, finalization="automatic"), _METHOD)
        if case.finalization == "async":
            plainer = msgspec.structs.replace(case, finalization="manual")
            yield Simpler(plainer, "finalize_backward(async_op=True)")


def finished(a: Anatomy) -> Iterator[Do]:
    """What the program does after a backward that reduces gradients."""
    if a.fsdp1 or a.case.finalization == "automatic":
        return
    # One call for each: units without a common root share no state, and end their backwards apart.
    for path in a.roots:
        root = Inside("model", path) if path else MODEL
        ended = call(".finalize_backward", root)
        if a.case.finalization == "async":
            ended = call(".wait", call(".finalize_backward", root, async_op=True))
        yield Do(call=ended, who="fsdp")
