"""How units of fsdp2 communicate, where the user has a say in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import Part, on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.divide_factor import scaled
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

_STEPS = "steps.fsdp2.communication"
_OWN = ("OwnAllGather", "OwnReduceScatter")
_PLAINER = (
    ("own", "set_custom_all_gather and set_custom_reduce_scatter"),
    ("allocated", "set_allocate_memory_from_process_group_for_comm"),
    ("hooked", "set_all_reduce_hook"),
)
"""Flags, and what ablation calls them."""


class Communication(Part, frozen=True, kw_only=True):
    """What all units are told of it; the defaults are PyTorch's own."""

    own: bool = False
    """``set_custom_all_gather`` and ``set_custom_reduce_scatter``."""
    allocated: bool = False
    """``set_allocate_memory_from_process_group_for_comm(True)``."""
    hooked: bool = False
    """``set_all_reduce_hook``, with one that halves gradients once they are reduced."""

    def words(self) -> str:
        """``own collectives, gradients halved``."""
        words = ["own collectives"] if self.own else []
        words += ["memory of the process group"] if self.allocated else []
        words += ["gradients halved"] if self.hooked else []
        return ", ".join(words)


class CommunicationDimension(Dimension):
    """FSDP2's own ways, or with collectives, memory or a hook of the user's."""

    name = "communication"
    newer: ClassVar[tuple[str, ...]] = (
        "FSDPModule.set_custom_all_gather()",
        "FSDPModule.set_custom_reduce_scatter()",
        "FSDPModule.set_allocate_memory_from_process_group_for_comm()",
    )
    features: ClassVar[Mapping[str, Feature]] = {
        "communication": Feature(
            about="default, own (the user's collectives), allocated (by the process group): how "
            "units gather and reduce (fsdp2 only)",
            group="Training",
            values=("default", "own", "allocated"),
            apis=("fsdp2",),
        ),
        "all_reduce_hook": Feature(
            about="on when a hook of the user's changes gradients that were reduced (fsdp2 only)",
            group="Training",
            values=ON,
            apis=("fsdp2",),
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Each of them."""
        if not a.fsdp1:
            told = a.case.communication or Communication()
            yield "communication", "own" if told.own else _ALLOCATED[told.allocated]
            yield "all_reduce_hook", on(told.hooked)

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """What differs from the default."""
        if case.communication is not None:
            yield "communication", case.communication.words()

    def asked(self, a: Anatomy) -> bool:
        """Wherever anything is told."""
        return a.case.communication is not None

    def check(self, a: Anatomy) -> None:
        """fsdp2 is told something."""
        told, at = a.case.communication, "$.communication"
        if told is None:
            return
        if a.fsdp1:
            raise CaseError("an option of fsdp2 alone", path=at)
        if told == Communication():
            raise CaseError("leave it out where all is PyTorch's default", path=at)
        # set_allocate_memory_from_process_group_for_comm: "This cannot be used together with
        # set_custom_all_gather or set_custom_reduce_scatter".
        if told.own and told.allocated:
            raise CaseError("own collectives allocate by themselves", path=f"{at}.allocated")

    def told(self, a: Anatomy, root: Value) -> Iterator[Do]:
        """Each of the units: these setters are not recursive."""
        told = a.case.communication
        if told is None:
            return
        top = root.path if isinstance(root, Inside) else ""
        for path in (path for path in a.units if within(path, top)):
            unit = Inside("model", path) if path else MODEL
            calls = []
            if told.own:
                gathering, reducing = (call(f"{_STEPS}.{name}") for name in _OWN)
                calls.append(call(".set_custom_all_gather", unit, gathering))
                calls.append(call(".set_custom_reduce_scatter", unit, reducing))
            if told.allocated:
                name = ".set_allocate_memory_from_process_group_for_comm"
                calls.append(call(name, unit, True))
            if told.hooked:
                calls.append(call(".set_all_reduce_hook", unit, call(f"{_STEPS}.halving")))
            for made in calls:
                yield Do(call=made, who="fsdp")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """One thing less."""
        told, replace = case.communication, msgspec.structs.replace
        if told is None:
            return
        for name, words in _PLAINER:
            less = replace(told, **{name: False})
            if less != told:
                left = None if less == Communication() else less
                yield Simpler(replace(case, communication=left), words)


_ALLOCATED = {False: "default", True: "allocated"}


def hooked(a: Anatomy) -> Iterator[Do]:
    """What makes the plain model's gradients those that the hook leaves."""
    if a.case.communication is not None and a.case.communication.hooked:
        yield scaled(a, 0.5)
