"""A checkpoint on disk that another model loads: without FSDP, by either API, on fewer ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import msgspec

from fsdpfuzz.case.base import Ranks, on, ranks_in_words
from fsdpfuzz.case.dimension import ON, Feature, Simpler, one
from fsdpfuzz.case.modules.extra_state import extra_keys
from fsdpfuzz.case.operations.average_unmanaged import unmanaged
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.operations.optim_state import may_lack_state, resharded
from fsdpfuzz.case.operations.rebuild import check_stored
from fsdpfuzz.case.operations.requires_grad import changes_training
from fsdpfuzz.case.operations.state_dict import state_step
from fsdpfuzz.case.optimizer import makes_steps
from fsdpfuzz.case.recipe import MODEL, OPTIMIZER, Do, Statement, Value, Variable, call, literal
from fsdpfuzz.case.strides import transposed
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec

Into = Literal["plain", "fsdp1", "fsdp2", "ddp"]
_WAYS = (*get_args(Into), "several")

PARAMETERS = "transferred"
"""All parameters of the other model, whole."""
STATE = "transferred_state"
"""All that its optimizer holds of each, whole."""
GROUPS = "transferred_groups"
"""The options of each of its groups."""
_OTHER, _OTHER_OPTIMIZER = Variable("other"), Variable("other_optimizer")
_INNER = Variable("inner")


class Transfer(OperationBase, tag="transfer", frozen=True, kw_only=True):
    """Saves with ``torch.distributed.checkpoint``, and loads into another model beside this one.

    That is what it means to go on with another number of ranks, with the other API or without FSDP.
    The training itself goes on with the model that it had.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "transferred": Feature(
            about="no, plain (into a model without FSDP), fsdp1, fsdp2, ddp, several: what loads "
            "a checkpoint of the training",
            group="State",
            values=("no", *_WAYS),
            excludes={
                "no": {
                    "transferred_ranks": ("fewer",),
                    "transferred_state": ("on",),
                    "transferred_compiled": ("on",),
                },
                **{way: {"stored": ("off",)} for way in _WAYS},
            },
        ),
        "transferred_compiled": Feature(
            about="on when torch.compile was called on what loads, which is never run",
            group="State",
            values=ON,
        ),
        "transferred_together": Feature(
            about="on when one call loads model and optimizer into another model",
            group="State",
            values=ON,
            excludes={"on": {"transferred_state": ("off",), "stored": ("off",)}},
        ),
        "transferred_ranks": Feature(
            about="all, fewer (one, or a group of neighbours): the ranks that load it together",
            group="State",
            values=("all", "fewer"),
        ),
        "transferred_state": Feature(
            about="on when the optimizer's state is loaded as well",
            group="State",
            values=ON,
        ),
    }
    needs_reduced: ClassVar[bool] = True
    casts_buffers: ClassVar[bool] = True
    stores: ClassVar[bool] = True
    results: ClassVar[tuple[str, ...]] = (PARAMETERS, STATE, GROUPS)

    into: Into = "plain"
    """How the other model is wrapped: not, or its root alone."""
    ranks: Ranks | None = None
    """So many neighbouring ranks load it together, as if there were no others; None for all."""
    state: bool = False
    """With the optimizer's state."""
    together: bool = False
    """Model and optimizer by ``get_state_dict`` and ``set_state_dict``, not one by one."""
    compiled: bool = False
    """``torch.compile`` is called on the other model, whose names then have another prefix."""

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """Between iterations, of a model that is saved whole and that any of them can hold."""
        if progress.pending or not progress.reduced:
            raise CaseError("transfer in the middle of an iteration", path=at)
        check_stored(a, progress, at)
        if a.imported is not None:
            raise CaseError("nobody knows how else an imported model is made", path=at)
        if self.ranks is not None and a.case.world_size % self.ranks:
            raise CaseError("groups of ranks have one size", path=f"{at}.ranks")
        if refused := refused_into(a, self.into):
            raise CaseError(refused, path=f"{at}.into")
        if self.ranks is not None and dies_in_groups(a, self.into):
            raise CaseError("DDP at the level DETAIL ends ranks of a group", path=f"{at}.ranks")
        if self.together and not self.state:
            raise CaseError(
                "together with the optimizer, which is not saved", path=f"{at}.together"
            )
        if self.state and not takes_optimizer(a):
            raise CaseError(
                "of an optimizer that has stepped each parameter that requires grad, and no other",
                path=f"{at}.state",
            )

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """Saved; another model, every element changed, loads it and is looked at."""
        a, folder, device = lowering.a, Variable("folder"), Variable("device")
        few, group = Variable("few"), Variable("group")
        own: Value = OPTIMIZER if self.state else None
        other: Value = _OTHER_OPTIMIZER if self.state else None
        named = Variable("named")
        yield from resharded(lowering)
        taken = call(f"steps.rebuild.{'both' if self.together else 'state_of'}", MODEL, own)
        saved = call("steps.rebuild.save", taken, device)
        yield Do(call=saved, into=(folder,), who="fsdp")
        blank = call(state_step(a, "blank"), call("recipe.build", Variable("dtype")))
        yield Do(call=blank, into=(_OTHER,), who="fsdp")
        options: dict[str, Value] = {}
        second: dict[str, Value] = {}
        if self.into == "ddp" or self.compiled:
            second["inner"] = _INNER
            yield Do(call=_OTHER, into=(_INNER,), who="fsdp")
        if self.ranks is not None:
            mesh: Value = call("steps.mesh.neighbours", device, self.ranks)
            yield Do(call=mesh, into=(few,), who="fsdp")
            yield Do(call=call(".get_group", few), into=(group,), who="fsdp")
            options["group"] = group
        if self.into != "plain":
            mesh = call("steps.mesh.over_all", device) if self.ranks is None else few
            placed = (device,) if self.into == "fsdp1" else ()
            wrapped = call(f"steps.transfer.{self.into}", _OTHER, mesh, *placed)
            yield Do(call=wrapped, into=(_OTHER,), who="fsdp")
        if self.compiled:
            made = call("steps.transfer.compiled", _OTHER)
            yield Do(call=made, into=(_OTHER,), who="fsdp")
        asked = a.case.optimizer
        if self.state and asked is not None:
            made = asked.made(call(".parameters", _OTHER))
            yield Do(call=made, into=(_OTHER_OPTIMIZER,), who="fsdp")
            yield Do(call=call("steps.optim_state.forget", _OTHER_OPTIMIZER), who="fsdp")
        way = "load_both" if self.together else "load"
        read = call(f"steps.rebuild.{way}", _OTHER, other, folder, **options)
        yield Do(call=read, who="fsdp")
        found, state = Variable(PARAMETERS), Variable(STATE)
        tied = (*a.source, *a.brought_ties, *extra_keys(a))
        if tied:
            second["second"] = literal(tied)
        whole = call("steps.transfer.parameters", _OTHER, **second)
        yield Do(call=whole, into=(found,), who="fsdp", looks=True)
        plain = call("steps.full_params.taken", named)
        yield Do(call=plain, into=(found,), who="reference", looks=True)
        held = call("steps.transfer.state", _OTHER, other, device)
        yield Do(call=held, into=(state,), who="fsdp", looks=True)
        right: Value = call("steps.optim_state.taken", OPTIMIZER, named) if self.state else None
        yield Do(call=right, into=(state,), who="reference", looks=True)
        groups = (Variable(GROUPS),)
        loaded = call("steps.optim_state.groups", other)
        yield Do(call=loaded, into=groups, who="fsdp", looks=True)
        given = call("steps.optim_state.groups", own)
        yield Do(call=given, into=groups, who="reference", looks=True)

    def names_state(self) -> bool:
        """Where it takes the optimizer's along."""
        return self.state

    def words(self) -> str:
        """``save, load as fsdp2 on 2 ranks, with optimizer``."""
        words = [f"save, load {'without FSDP' if self.into == 'plain' else f'as {self.into}'}"]
        words += [] if self.ranks is None else [f"on {ranks_in_words(self.ranks)}"]
        words += ["and torch.compile"] if self.compiled else []
        words += ["by one call"] if self.together else []
        return " ".join(words) + (", with optimizer" if self.state else "")

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Into what, by whom, and with what."""
        found = [op for op in a.case.program if isinstance(op, Transfer)]
        yield "transferred", one((op.into for op in found), several="several")
        fewer = any(op.ranks not in (None, a.case.world_size) for op in found)
        yield "transferred_ranks", "fewer" if fewer else "all"
        yield "transferred_state", on(any(op.state for op in found))
        yield "transferred_compiled", on(any(op.compiled for op in found))
        yield "transferred_together", on(any(op.together for op in found))

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """On all ranks; without the optimizer; into a plain model; not compiled; one by one."""
        plainer: Mapping[str, Mapping[str, object]] = {
            "fewer ranks that load": {"ranks": None},
            "the optimizer's state in the checkpoint": {"state": False, "together": False},
            "a wrapper around what loads": {"into": "plain"},
            "torch.compile of what loads": {"compiled": False},
            "one call for model and optimizer": {"together": False},
        }
        for words, changes in plainer.items():
            program = tuple(
                msgspec.structs.replace(op, **changes) if isinstance(op, Transfer) else op
                for op in case.program
            )
            if program != case.program:
                yield Simpler(msgspec.structs.replace(case, program=program), words)


def refused_into(a: Anatomy, into: str) -> str:
    """Why a model cannot be wrapped so; empty if it can."""
    if into in ("fsdp1", "fsdp2") and any(not p.shape for p in a.parameters):
        return "a 0-dim parameter cannot be sharded"
    if into == "fsdp2" and transposed(a):
        return "fsdp2 cuts none but contiguous parameters"
    if into == "fsdp1" and a.case.stored_low:
        return "fsdp1 flattens none but parameters of one dtype"
    # ``_log_and_throw`` in torch/nn/parallel/distributed.py.
    if into == "ddp" and a.frozen.issuperset(p.fqn for p in a.distinct):
        return "DDP takes no model of which no parameter requires grad"
    return ""


# No business of FSDP's, in torch 2.11.0 and 2.13.0; over all ranks it is made.
def dies_in_groups(a: Anatomy, into: str) -> bool:
    """Whether it ends in a segmentation fault to make it for a group of some ranks."""
    return into == "ddp" and a.case.debug_level == "DETAIL"


def takes_optimizer(a: Anatomy) -> bool:
    """Whether an optimizer made anew has states of the same parameters as the one that is saved."""
    return makes_steps(a) and not (
        may_lack_state(a) or changes_training(a.case.program) or unmanaged(a)
    )
