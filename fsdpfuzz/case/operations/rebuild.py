"""A training that is saved to disk and taken up again under another plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.operations.average_unmanaged import differs_by_rank
from fsdpfuzz.case.operations.base import OperationBase, Progress, Word
from fsdpfuzz.case.operations.clear_grad import ClearGrad
from fsdpfuzz.case.operations.optim_state import LEFT, LOADED, gradients_left, loaded
from fsdpfuzz.case.optimizer import goes_through
from fsdpfuzz.case.recipe import MODEL, OPTIMIZER, Do, Statement, Value, Variable, call
from fsdpfuzz.case.units import OPTIONS
from fsdpfuzz.case.wrap import Plan, WrapDimension
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


class Rebuild(OperationBase, tag="rebuild", frozen=True, kw_only=True):
    """Saves model and optimizer with ``torch.distributed.checkpoint``, and goes on from there.

    Both are made anew, the model with every element changed and wrapped as ``plan`` says, the
    optimizer with other options, and what was saved is loaded into them. Gradients are not saved.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "rebuilt": Feature(
            about="no, same (taken up under the plan that it was saved under), other",
            group="State",
            values=("no", "same", "other"),
            excludes={
                "no": {
                    "rebuilt_state": ("part",),
                    "rebuilt_together": ("on",),
                    "async_save": ("on",),
                }
            },
        ),
        "stored": Feature(
            about="on when a checkpoint of the training is saved on disk",
            group="State",
            values=ON,
            excludes={"off": {"rebuilt": ("same", "other")}},
        ),
        "async_save": Feature(
            about="on when a checkpoint is written in the background, and what was saved changes "
            "meanwhile",
            group="State",
            values=ON,
        ),
        "rebuilt_together": Feature(
            about="on when one call saves, and one loads, model and optimizer",
            group="State",
            values=ON,
        ),
        "rebuilt_state": Feature(
            about="whole, part (of the optimizer's state is saved: a parameter that requires grad "
            "had no step with a gradient before)",
            group="State",
            values=("whole", "part"),
        ),
    }
    program_words: ClassVar[Mapping[str, Word]] = {
        "reload": Word(
            about="saves model and optimizer, makes both anew, loads, and goes on with them",
            means=lambda listed: (Rebuild(plan=listed.plan),),
            after_reduction=True,
        )
    }
    wraps: ClassVar[bool] = True
    casts_buffers: ClassVar[bool] = True
    renews: ClassVar[bool] = True
    stores: ClassVar[bool] = True
    results: ClassVar[tuple[str, ...]] = (LOADED, LEFT)

    plan: Plan
    asynchronous: bool = False
    """With ``async_save``; model and optimizer are zeroed while it writes."""
    together: bool = False
    """Model and optimizer by ``get_state_dict`` and ``set_state_dict``, not one by one."""

    def plan_after(self, plan: Plan) -> Plan:
        """The new one."""
        return self.plan

    def with_plan(self, change: Callable[[Plan], Plan]) -> Rebuild:
        """Under the changed plan."""
        return msgspec.structs.replace(self, plan=change(self.plan))

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """A sound plan of the same API, between iterations, of a model that is saved whole."""
        case = a.case
        if type(self.plan) is not type(case.plan):
            raise CaseError("the plan is for the other API", path=f"{at}.plan")
        if progress.pending:
            raise CaseError("rebuild while a forward waits for its backward", path=at)
        if self.together and not goes_through(a):
            raise CaseError("together with an optimizer that there is not", path=f"{at}.together")
        check_stored(a, progress, at)
        _check_plan(a.of(msgspec.structs.replace(case, plan=self.plan)), f"{at}.plan")
        progress.cleared = True

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """Save, make anew, load; what the plain model has of gradients goes, too."""
        folder = Variable("folder")
        optimizer: Value = OPTIMIZER if goes_through(lowering.a) else None
        device = Variable("device")
        state = call(f"steps.rebuild.{'both' if self.together else 'state_of'}", MODEL, optimizer)
        saved = call("steps.rebuild.save", state, device)
        if self.asynchronous:
            saved = call("steps.rebuild.save_meanwhile", state, MODEL, optimizer, device)
        yield Do(call=saved, into=(folder,), who="fsdp")
        yield from lowering.made_again()
        if optimizer is not None:
            yield Do(call=call("steps.optim_state.forget", optimizer), who="fsdp")
        way = "load_both" if self.together else "load"
        read = call(f"steps.rebuild.{way}", MODEL, optimizer, folder)
        yield Do(call=read, who="fsdp")
        yield loaded(optimizer)
        # The new model has none; the plain one would go on accumulating.
        yield Do(call=call(".zero_grad", MODEL), who="reference")
        yield gradients_left(optimizer)
        lowering.reduced = False

    def names_state(self) -> bool:
        """Where there is an optimizer."""
        return True

    def words(self) -> str:
        """``save, rebuild as fsdp2 (2 units), load``."""
        units = len(self.plan.units)
        save = "save in the background" if self.asynchronous else "save"
        load = "load by one call" if self.together else "load"
        return f"{save}, rebuild as {self.plan.words()} ({units} unit{'s' * (units > 1)}), {load}"

    def moves(self, now: Situation, a: Anatomy, rank: int) -> None:
        """Who manages what, and that nothing has a gradient.

        The new model is wrapped first and frozen as the old one was then.
        """
        now.graded.clear()
        changed = tuple(now.changed(a.frozen))
        now.trained = {fqn: fqn not in a.frozen for fqn in now.trained}
        # In this order: a flat parameter takes the ``requires_grad`` that its parts have when it is
        # made.
        now.wrapped(a.of(msgspec.structs.replace(a.case, plan=self.plan)))
        for value, names in changed:
            now.require(names, value)

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether it changes the plan."""
        found = [op for op in a.case.program if isinstance(op, Rebuild)]
        same = all(op.plan == a.case.plan for op in found)
        yield "rebuilt", "no" if not found else "same" if same else "other"
        yield "async_save", on(any(op.asynchronous for op in found))
        yield "rebuilt_together", on(any(op.together for op in found))
        yield "rebuilt_state", "part" if saves_a_part(a) else "whole"
        yield "stored", on(any(op.stores for op in a.case.program))

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """Saved at once; one by one; under the same plan, or a plainer one; wrapped so at first."""
        replace = msgspec.structs.replace
        for i, op in enumerate(case.program):
            if not isinstance(op, Rebuild):
                continue

            def having(i: int = i, op: Rebuild = op, **changes: object) -> CaseSpec:
                program = (*case.program[:i], replace(op, **changes), *case.program[i + 1 :])
                return replace(case, program=program)

            if op.asynchronous:
                yield Simpler(having(asynchronous=False), "async_save")
            if op.together:
                yield Simpler(having(together=False), "one call for model and optimizer")
            # Under the case's own plan it has no plainer one: the case itself gives those.
            if op.plan != case.plan:
                yield Simpler(having(plan=case.plan), "another plan after the rebuild")
                left = (*case.program[:i], *case.program[i + 1 :])
                yield Simpler(replace(case, plan=op.plan, program=left))
                for plainer in _simpler_plans(replace(case, plan=op.plan)):
                    yield Simpler(having(plan=plainer.case.plan), plainer.words)


def check_stored(a: Anatomy, progress: Progress, at: str) -> None:
    """Raises :class:`CaseError` where a checkpoint on disk cannot hold all of the model."""
    if differs_by_rank(a, progress):
        raise CaseError("each rank has trained by itself what no unit manages", path=at)
    # The active child of a switch is in no state dict.
    if a.switches or a.case.probes:
        raise CaseError("a checkpoint on disk goes with no switch and no probe", path=at)
    for place in a.places:
        if place.node is not None and place.node.loses_state():
            raise CaseError(f"{place.path!r} updates a buffer that is not saved", path=at)


def saves_a_part(a: Anatomy) -> bool:
    """Whether a parameter that requires grad may have no state while another one has gradients."""
    used = {p.fqn for p in a.distinct if p.used}
    went_back: set[str] = set()
    stepped: set[str] = set()
    for _, op, now in a.situations(0):
        trained = {name for name, on in now.trained.items() if on}
        if op.gives_gradients:
            went_back |= trained & used & now.given
        elif isinstance(op, ClearGrad):
            went_back.difference_update(op.parameters)
        elif op.steps_optimizer:
            stepped |= went_back
        elif isinstance(op, Rebuild) and went_back and not stepped.issuperset(trained):
            return True
    return False


@lru_cache(maxsize=64)
def loaded_frozen(a: Anatomy) -> frozenset[str]:
    """Parameters that were stepped and are frozen while their state is loaded under its names."""
    went_back: set[str] = set()
    stepped: set[str] = set()
    found: set[str] = set()
    for _, op, now in a.situations(0):
        trained = {fqn for fqn in now.trained if now.requires_grad(fqn)}
        if op.gives_gradients:
            went_back |= trained & now.given
        elif op.steps_optimizer:
            stepped |= went_back.difference(a.case.held_out)
        if op.names_state():
            found |= stepped - trained
    return frozenset(found)


def _check_plan(a: Anatomy, at: str) -> None:
    """:class:`CaseError` if the case's plan contradicts itself; ``at`` is where it stands."""
    for dimension in _of_plans():
        try:
            dimension.check(a)
        except CaseError as error:
            raise CaseError(error.reason, path=error.path.replace("$.plan", at, 1)) from None


def _simpler_plans(case: CaseSpec) -> Iterator[Simpler]:
    """The case with plainer plans."""
    for dimension in _of_plans():
        yield from dimension.simpler(case)


def _of_plans() -> tuple[Dimension, ...]:
    return (WrapDimension(), *OPTIONS)
