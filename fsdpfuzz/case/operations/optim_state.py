"""The optimizer's state: taken, compared, lost and loaded again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature, Simpler, one
from fsdpfuzz.case.lacking import may_lack_grads
from fsdpfuzz.case.operations.average_unmanaged import differs_by_rank
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.operations.forward import (
    calls_below_the_root,
    cut_gradients,
    leaves_units_whole,
)
from fsdpfuzz.case.operations.requires_grad import changes_training
from fsdpfuzz.case.operations.state_dict import dcp_options
from fsdpfuzz.case.optimizer import makes_steps
from fsdpfuzz.case.recipe import MODEL, OPTIMIZER, Do, Statement, Value, Variable, call
from fsdpfuzz.case.stepped import has_scalar_state, has_state_after
from fsdpfuzz.case.units.reshard_after_forward import told_to_reshard
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec

OPTIM_STATE = "optim_state"
OPTIONS = "optim_options"
"""The options of each parameter's group, as they are saved."""
LOADED = "optim_loaded"
"""The options of each group, and the number of steps of each parameter, as they are loaded."""
LEFT = "gradients_left"
"""How many parameters have a gradient once a new optimizer has its state."""
_DCP = "torch.distributed.checkpoint.state_dict"
_FLAGS = ("offload", "broadcast", "flatten", "ignore_frozen", "fresh")
_SAID = {
    "own": "fsdp1's own",
    "offload": "to CPU",
    "broadcast": "broadcast",
    "flatten": "flattened",
    "ignore_frozen": "ignore frozen",
    "fresh": "into a new optimizer",
}
_NONE: Mapping[str, tuple[str, ...]] = {
    f"optim_{name}": ("on",) for name in ("own", "offload", "broadcast", "flatten", "fresh")
}

_NEEDS: Mapping[str, tuple[str, ...]] = {"optimizer": ("none",)}


class OptimState(OperationBase, tag="optim_state", frozen=True, kw_only=True):
    """Takes the optimizer's state dict, compares it with the reference's state, and loads it.

    By ``torch.distributed.checkpoint.state_dict``, or by fsdp1's ``optim_state_dict``. What the
    optimizer holds is changed before, or it is made anew.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "optim_state": Feature(
            about="no, full, sharded, several: the form of the optimizer's state dict",
            group="State",
            values=("no", "full", "sharded", "several"),
            excludes={
                "no": _NONE,
                "full": _NEEDS,
                "sharded": {**_NEEDS, "optim_broadcast": ("on",)},
                "several": _NEEDS,
            },
        ),
        "optim_own": Feature(
            about="on when it is taken by FullyShardedDataParallel.optim_state_dict (fsdp1 only)",
            group="State",
            values=ON,
            apis=("fsdp1",),
        ),
        "optim_offload": Feature(
            about="on when the optimizer's state is offloaded to the CPU",
            group="State",
            values=ON,
        ),
        "optim_broadcast": Feature(
            about="on when rank 0's state of the optimizer is broadcast, as a full one offloaded "
            "to the CPU is by torch.distributed.checkpoint",
            group="State",
            values=ON,
        ),
        "optim_flatten": Feature(
            about="on when the optimizer's state dict is flattened",
            group="State",
            values=ON,
        ),
        "optim_stateless": Feature(
            about="on when it is taken before any parameter has state, scalars when only 0-dim "
            "parameters have any",
            group="State",
            # Nearly no model trains 0-dim parameters alone: no pair with it is waited for.
            values=ON,
            open=True,
            excludes={"on": {"optim_state": ("no",)}},
        ),
        "optim_fresh": Feature(
            about="on when the state is loaded into a new optimizer",
            group="State",
            values=ON,
        ),
    }
    needs_reduced: ClassVar[bool] = True
    casts_buffers: ClassVar[bool] = True
    asks_optimizer: ClassVar[bool] = True
    saves_optimizer: ClassVar[bool] = True
    results: ClassVar[tuple[str, ...]] = (OPTIM_STATE, OPTIONS, LOADED, LEFT)

    form: Literal["full", "sharded"] = "full"
    own: bool = False
    """By fsdp1's own API."""
    offload: bool = False
    broadcast: bool = False
    """``broadcast_from_rank0``; of fsdp1's own API ``rank0_only``."""
    flatten: bool = False
    """``flatten_optimizer_state_dict``."""
    strict: bool = True
    ignore_frozen: bool = False
    """``ignore_frozen_params``."""
    fresh: bool = False
    """Into a new optimizer, where there are no gradients."""

    @property
    def saves_shards(self) -> bool:
        """As ``sharded``."""
        return self.form == "sharded"

    @property
    def flattens_state(self) -> bool:
        """With ``flatten``."""
        return self.flatten

    @property
    def fills_new(self) -> bool:
        """With ``fresh``."""
        return self.fresh and self.form == "full"

    @property
    def on_rank0(self) -> bool:
        """Whether rank 0 alone may have it, so that loading has to broadcast it.

        The common API documents so of a full state dict that is offloaded.
        """
        return self.form == "full" and (self.broadcast or (self.offload and not self.own))

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """Between iterations, once the optimizer has made a step; the form has the option."""
        case = a.case
        if progress.pending or not progress.reduced:
            raise CaseError("the optimizer's state in the middle of an iteration", path=at)
        if self.on_rank0 and differs_by_rank(a, progress):
            raise CaseError("rank 0's alone, of what each rank has trained by itself", path=at)
        if not makes_steps(a):
            raise CaseError("no optimizer makes a step", path=at)
        if case.probes:
            raise CaseError("a tracked program saves no state", path=at)
        # ``_init_optim_state`` in checkpoint/state_dict.py makes the states of a new optimizer only
        # where no parameter has a gradient.
        if self.fresh and not progress.cleared:
            raise CaseError("a new optimizer beside gradients", path=f"{at}.fresh")
        if self.strict and not self.own and may_lack_state(a):
            words = "a parameter may have no state, which strict asks for"
            raise CaseError(words, path=f"{at}.strict")
        if self.own and not a.fsdp1:
            raise CaseError("an option of fsdp1 alone", path=f"{at}.own")
        for name, usual in (("flatten", False), ("strict", True), ("ignore_frozen", False)):
            if self.own and getattr(self, name) is not usual:
                raise CaseError("fsdp1's own API has no such option", path=f"{at}.{name}")
        if self.broadcast and self.form != "full":
            raise CaseError("rank 0 broadcasts a full state dict alone", path=f"{at}.broadcast")

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """Saved, written as tables, and loaded into what has lost it."""
        saved, optimizer = Variable("saved"), OPTIMIZER
        found, device = Variable(OPTIM_STATE), Variable("device")
        full = self.form == "full"
        rank0 = self.on_rank0
        if self.own:
            save = call("steps.optim_state.save_own", MODEL, optimizer, full, **self._own(rank0))
            options: dict[str, Value] = {"rank0": True} if rank0 else {}
            load = call("steps.optim_state.load_own", MODEL, optimizer, saved, full, **options)
        else:
            told = self._options()
            save = call(f"{_DCP}.get_optimizer_state_dict", MODEL, optimizer, **_given(told))
            # To load alone: what is offloaded as a whole exists on rank 0 only, so the others have
            # nothing.
            told |= {"broadcast_from_rank0": True} if rank0 else {}
            load = call(f"{_DCP}.set_optimizer_state_dict", MODEL, optimizer, saved, **_given(told))
        yield from resharded(lowering)
        yield Do(call=save, into=(saved,), who="fsdp")
        table = call("steps.optim_state.table", saved, self.flatten, rank0, device)
        yield Do(call=table, into=(found,), who="fsdp", looks=True)
        plain = call("steps.optim_state.taken", optimizer, Variable("named"))
        yield Do(call=plain, into=(found,), who="reference", looks=True)
        options_of = (Variable(OPTIONS),)
        told_of = call("steps.optim_state.options", saved, self.flatten, rank0, device)
        yield Do(call=told_of, into=options_of, who="fsdp", looks=True)
        given_to = call("steps.optim_state.given", optimizer, Variable("named"))
        yield Do(call=given_to, into=options_of, who="reference", looks=True)
        if not lowering.loads_state:
            return
        if self.fresh:
            yield from lowering.new_optimizer(who="fsdp")
        # Otherwise a load that does nothing would pass for one that restores everything.
        yield Do(call=call("steps.optim_state.forget", optimizer), who="fsdp")
        yield Do(call=load, who="fsdp")
        yield loaded(optimizer)
        yield gradients_left(optimizer if self.fresh else None)

    def _own(self, rank0: bool) -> dict[str, Value]:
        given: dict[str, Value] = {"offload": True} if self.offload else {}
        return given | ({"rank0": True} if rank0 else {})

    def _options(self) -> dict[str, Value]:
        return dcp_options(
            full=self.form == "full",
            offload=self.offload,
            ignore_frozen=self.ignore_frozen,
            flatten=self.flatten,
            broadcast=self.broadcast,
            strict=self.strict,
        )

    def names_state(self) -> bool:
        """Not by fsdp1's own API."""
        return not self.own

    def words(self) -> str:
        """``optimizer state, full, to CPU``."""
        words = [f"optimizer state, {self.form}"]
        words += [said for name, said in _SAID.items() if getattr(self, name)]
        return ", ".join(words + ([] if self.strict else ["not strict"]))

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Forms and options over the program."""
        found = [op for op in a.case.program if isinstance(op, OptimState)]
        yield "optim_state", one((op.form for op in found), several="several")
        if a.fsdp1:
            yield "optim_own", on(any(op.own for op in found))
        yield "optim_offload", on(any(op.offload for op in found))
        yield "optim_stateless", _stateless(a)
        yield "optim_broadcast", on(any(op.on_rank0 for op in found))
        yield "optim_flatten", on(any(op.flatten for op in found))
        yield "optim_fresh", on(any(op.fresh for op in found))

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """By the common API; each option as PyTorch has it; into the optimizer itself; full."""
        plainer = {"own": False, **dict.fromkeys(_FLAGS, False), "strict": True}
        for name, value in plainer.items():
            program = tuple(
                msgspec.structs.replace(op, **{name: value}) if isinstance(op, OptimState) else op
                for op in case.program
            )
            if program != case.program:
                words = _SAID.get(name, "strict=False")
                yield Simpler(
                    msgspec.structs.replace(case, program=program), f"optimizer state {words}"
                )
        full = tuple(
            msgspec.structs.replace(op, form="full") if isinstance(op, OptimState) else op
            for op in case.program
        )
        if full != case.program:
            yield Simpler(msgspec.structs.replace(case, program=full))


def _stateless(a: Anatomy) -> str:
    taken = [i for i, op in enumerate(a.case.program) if isinstance(op, OptimState)]
    if taken and taken[0] < has_state_after(a):
        return "on"
    return "scalars" if any(has_scalar_state(a, i) for i in taken) else "off"


def loaded(optimizer: Value) -> Do:
    """Looks at what an optimizer, if any, holds beside tensors; the plain model's lost nothing."""
    held = call("steps.optim_state.numbers", optimizer, Variable("named"))
    return Do(call=held, into=(Variable(LOADED),), looks=True)


def gradients_left(optimizer: Value) -> Do:
    """Looks whether what gave a new optimizer, if there is one, its state left gradients."""
    left = call("steps.optim_state.gradients", optimizer)
    return Do(call=left, into=(Variable(LEFT),), looks=True)


def _given(told: dict[str, Value]) -> dict[str, Value]:
    """What the functions of the common API take beside model, optimizer and state."""
    return {"options": call(f"{_DCP}.StateDictOptions", **told)} if told else {}


# The functions of checkpoint/state_dict.py find names by the parameters that the model shows.
def resharded(lowering: Lowering) -> Iterator[Statement]:
    """What has every unit of fsdp2 show the optimizer's parameters, where one might not."""
    if _may_be_whole(lowering):
        yield Do(call=call("steps.fsdp2.units.reshard", MODEL), who="fsdp")


def _may_be_whole(lowering: Lowering) -> bool:
    """Whether a unit of fsdp2 may be whole, which shows others than the optimizer's parameters."""
    a = lowering.a
    if a.fsdp1:
        return False
    return told_to_reshard(a) or leaves_units_whole(a.case.program) or may_lack_grads(lowering.a)


def may_lack_state(a: Anatomy) -> bool:
    """Whether a step may leave a parameter that requires grad without a state.

    ``StateDictOptions`` documents that ``strict`` refuses to load that.
    """
    case = a.case
    return (
        bool(cut_gradients(a, plain=True))
        or bool(case.held_out)
        or bool(a.optional)
        or any(not p.used and p.fqn not in a.frozen for p in a.parameters)
        or passes_by_parameters(case.program)
    )


def passes_by_parameters(program: Sequence[OperationBase]) -> bool:
    """Whether a program may have steps that leave out a parameter, by its operations alone."""
    dropped = any(op.drops_gradients for op in program)
    return dropped or changes_training(program) or calls_below_the_root(program)
