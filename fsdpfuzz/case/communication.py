"""How units communicate, where the user has a say in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import msgspec

from fsdpfuzz.case.base import ModulePath, Part, on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Rejection, Simpler
from fsdpfuzz.case.divide_factor import scaled
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import MODEL, Do, Global, Inside, Value, Variable, call
from fsdpfuzz.case.units.replicas import belongs_to
from fsdpfuzz.case.units.sharding import is_whole
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

_STEPS = "steps.fsdp2.communication"
_HOOKS = "steps.fsdp1.communication"
_OWN = ("OwnAllGather", "OwnReduceScatter")
_LIBRARY = "torch.distributed.algorithms._comm_hooks.default_hooks"
CommHook = Literal["own", "halving", "library"]
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
    comm_hook: CommHook | None = None
    """``register_comm_hook`` (fsdp1): ``own`` averages as FSDP does, ``halving`` halves what it
    averages, ``library`` is one of ``default_hooks``. All else is of fsdp2."""
    again: ModulePath | None = None
    """The unit on which the hook is registered once more; None for no second time."""

    def words(self) -> str:
        """``own collectives, gradients halved``."""
        words = ["own collectives"] if self.own else []
        words += ["memory of the process group"] if self.allocated else []
        words += ["gradients halved"] if self.hooked else []
        words += [f"{self.comm_hook} comm hook"] if self.comm_hook is not None else []
        words += ["registered twice"] if self.again is not None else []
        return ", ".join(words)


def _hooks(a: Anatomy) -> bool:
    """Whether a hook is registered under fsdp1."""
    return a.case.communication is not None and a.fsdp1


# Over one rank a hybrid strategy is NO_SHARD by then: see `is_whole`.
def refuses_hook(a: Anatomy) -> bool:
    """Whether some unit of fsdp1 has a hybrid strategy when a hook is registered."""
    return any(unit.takes_mesh and a.shards(path) > 1 for path, unit in a.fsdp1_options.items())


def _again(a: Anatomy) -> str | None:
    return None if a.case.communication is None else a.case.communication.again


class CommunicationDimension(Dimension):
    """FSDP's own ways, or with collectives, memory or a hook of the user's."""

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
        "comm_hook": Feature(
            about="no, own (averages as FSDP does), halving, library (of default_hooks): what "
            "reduces gradients (fsdp1 only)",
            group="Training",
            values=("no", *get_args(CommHook)),
            apis=("fsdp1",),
        ),
    }
    rejections: ClassVar[tuple[Rejection, ...]] = (
        Rejection(
            name="fsdp1_comm_hook_of_hybrid",
            why="a communication hook reduces over one process group",
            pattern=r"Communication hook is not supported for hybrid strategies",
            source="FullyShardedDataParallel.register_comm_hook",
            asked=lambda a: _hooks(a) and refuses_hook(a),
            raised="AssertionError",
        ),
        Rejection(
            name="fsdp1_second_comm_hook",
            why="a communication hook is registered only once",
            pattern=r"A communication hook is already registered",
            source="docstring of FullyShardedDataParallel.register_comm_hook",
            asked=lambda a: _again(a) is not None and _again(a) in a.roots,
            raised="AssertionError",
        ),
        Rejection(
            name="fsdp1_comm_hook_below_the_root",
            why="a communication hook is registered on a root",
            pattern=r"register_comm_hook can only be called on a root instance",
            source="FullyShardedDataParallel.register_comm_hook",
            asked=lambda a: _again(a) is not None and _again(a) not in a.roots,
            raised="AssertionError",
        ),
    )

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Each of them."""
        told = a.case.communication or Communication()
        if a.fsdp1:
            yield "comm_hook", told.comm_hook or "no"
        else:
            yield "communication", "own" if told.own else _ALLOCATED[told.allocated]
            yield "all_reduce_hook", on(told.hooked)

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """What differs from the default."""
        if case.communication is not None:
            yield "communication", case.communication.words()

    def asked(self, a: Anatomy) -> bool:
        """Wherever fsdp2 is told anything."""
        return a.case.communication is not None and not a.fsdp1

    def check(self, a: Anatomy) -> None:
        """Each API is told of its own ways, and a hook knows what it is given."""
        told, at = a.case.communication, "$.communication"
        if told is None:
            return
        if told == Communication():
            raise CaseError("leave it out where all is PyTorch's default", path=at)
        if a.fsdp1:
            self._check_hook(a, told, at)
            return
        if told.comm_hook is not None or told.again is not None:
            raise CaseError("an option of fsdp1 alone", path=f"{at}.comm_hook")
        # set_allocate_memory_from_process_group_for_comm: "This cannot be used together with
        # set_custom_all_gather or set_custom_reduce_scatter".
        if told.own and told.allocated:
            raise CaseError("own collectives allocate by themselves", path=f"{at}.allocated")

    def _check_hook(self, a: Anatomy, told: Communication, at: str) -> None:
        if told.comm_hook is None or told.own or told.allocated or told.hooked:
            raise CaseError("fsdp1 takes a comm_hook, and nothing else", path=at)
        # Without one, all it does is make the outermost units roots, as a first forward does.
        if not any(op.gives_gradients for op in a.case.program):
            raise CaseError("no backward comes to it", path=f"{at}.comm_hook")
        if told.again is not None and told.again not in a.units:
            raise CaseError("it is registered once more on a unit", path=f"{at}.again")
        for run in a.under_each_plan if told.comm_hook == "library" else ():
            if len(_signatures(run)) > 1:
                text = "one of default_hooks is for sharded units or for whole ones, not for both"
                raise CaseError(text, path=f"{at}.comm_hook")
        for run in a.under_each_plan if told.comm_hook == "halving" else ():
            if _halves_again(run):
                text = "of a unit that is not sharded a hook gets what was reduced before as well"
                raise CaseError(text, path=f"{at}.comm_hook")

    def told(self, a: Anatomy, root: Value) -> Iterator[Do]:
        """Each of the units: the setters of fsdp2 are not recursive. Of fsdp1 the roots."""
        told = a.case.communication
        if told is None:
            return
        top = root.path if isinstance(root, Inside) else ""
        if a.fsdp1:
            yield from _registered(a, told, top)
            return
        for path in (path for path in a.units if belongs_to(a, path) == top):
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
                calls.append(
                    call(
                        ".set_all_reduce_hook", unit, call(f"{_STEPS}.halving", Variable("device"))
                    )
                )
            for made in calls:
                yield Do(call=made, who="fsdp")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """One thing less."""
        told, replace = case.communication, msgspec.structs.replace
        if told is None:
            return
        if told.comm_hook is not None:
            yield Simpler(replace(case, communication=None), "register_comm_hook")
        if told.again is not None:
            yield Simpler(replace(case, communication=replace(told, again=None)))
        if told.comm_hook not in (None, "own"):
            yield Simpler(replace(case, communication=replace(told, comm_hook="own")))
        for name, words in _PLAINER:
            less = replace(told, **{name: False})
            if less != told:
                left = None if less == Communication() else less
                yield Simpler(replace(case, communication=left), words)


_ALLOCATED = {False: "default", True: "allocated"}


def hooked(a: Anatomy) -> Iterator[Do]:
    """What makes the plain model's gradients those that the hook leaves."""
    told = a.case.communication
    if told is not None and (told.hooked or told.comm_hook == "halving"):
        yield scaled(a, 0.5)


def _signatures(a: Anatomy) -> set[bool]:
    """Whether the units are whole, so that a hook is given one tensor, or sharded."""
    return {is_whole(a, path) for path in a.units if a.owned[path]}


# Autograd adds to the gradient that was reduced before, and ``_reduce_grad_no_shard`` in
# fsdp/_runtime_utils.py hands over the sum: that of the whole unit, whatever is frozen since.
def _halves_again(a: Anatomy) -> bool:
    """Whether a unit that is not sharded is reduced while it has gradients reduced before."""
    reduced: set[str] = set()
    sync = True
    for _, op, now in a.situations(0):
        if op.clears_gradients or op.renews:
            reduced.clear()
        elif op.waits:
            sync = op.reduces
        elif op.gives_gradients and sync:
            trained = {a.owners[fqn] for fqn, trains in now.trained.items() if trains}
            whole = {path for path in trained if path is not None and is_whole(a, path)}
            if reduced & whole or (whole and op.goes_back_again):
                return True
            reduced |= whole
    return False


def _registered(a: Anatomy, told: Communication, root: str) -> Iterator[Do]:
    again = [told.again] if told.again is not None and within(told.again, root) else []
    for path in (root, *again):
        unit = Inside("model", path) if path else MODEL
        if told.comm_hook == "library":
            hook = "allreduce_hook" if True in _signatures(a) else "reduce_scatter_hook"
            made = call(f"{_HOOKS}.register_default", unit, Global(f"{_LIBRARY}.{hook}"))
        else:
            options: dict[str, Value] = {"halves": True} if told.comm_hook == "halving" else {}
            made = call(f"{_HOOKS}.register", unit, **options)
        yield Do(call=made, who="fsdp")
