"""From a case to the recipe that ranks execute and scripts quote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from fsdpfuzz.case.anatomy import Anatomy
from fsdpfuzz.case.averaging import average, forget_replaced, keep_others
from fsdpfuzz.case.building import build_of, module_of
from fsdpfuzz.case.checkpoints import names_are_prefixed
from fsdpfuzz.case.communication import hooked
from fsdpfuzz.case.divide_factor import followed
from fsdpfuzz.case.finalization import finished
from fsdpfuzz.case.flow import Situation
from fsdpfuzz.case.grad_scaler import scaler_made_again, scaler_of
from fsdpfuzz.case.keyword_input import named
from fsdpfuzz.case.lacking import graded_together
from fsdpfuzz.case.lag import lagging
from fsdpfuzz.case.loss import output_of
from fsdpfuzz.case.micro_batches import told
from fsdpfuzz.case.modules.method import METHOD
from fsdpfuzz.case.operations import (
    Op,
    StateDict,
)
from fsdpfuzz.case.operations.forward import keeps_losses
from fsdpfuzz.case.operations.state_dict import state_step
from fsdpfuzz.case.optimizer import Optimizer, goes_through
from fsdpfuzz.case.parallelised import AXIS, takes_axis
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import (
    MODEL,
    OPTIMIZER,
    Call,
    Do,
    Global,
    Index,
    Inside,
    Items,
    Operation,
    Procedure,
    Recipe,
    Statement,
    Unsynchronised,
    Value,
    Variable,
    Who,
    With,
    call,
    literal,
    values,
)
from fsdpfuzz.case.tensor_parallel import sharing
from fsdpfuzz.case.units.sharding import mesh_of
from fsdpfuzz.case.wrapping import Wrapping

TRACKER = "torch.distributed._tools.fsdp2_mem_tracker.FSDPMemTracker"
FLAT = "_flat_param"
"""Last part of the name of a flat parameter."""
_DEVICE = Variable("device")
_DTYPE = Variable("dtype")
_NAMED = Variable("named")


class Lowering:
    """Makes the recipe of a case; operations ask it for what depends on the rest of the case."""

    def __init__(
        self, a: Anatomy, *, loads_state: bool = True, keep: Sequence[Statement] = ()
    ) -> None:
        """``keep`` follows each forward; ``loads_state`` says that saved states are loaded."""
        self.a = a
        """The case's anatomy under the plan that holds at the operation that is made."""
        self._first = a
        self._op = -1
        self.loads_state = loads_state
        self.reduced = False
        """Whether gradients of an earlier backward are there, reduced and not cleared since."""
        self._keep = tuple(keep)
        self._forwards = 0
        self._pending = 0
        self._unreduced = False
        self._given: set[str] = set()
        """Those given a gradient since gradients were reduced last."""

    def recipe(self) -> Recipe:
        """Everything, in order."""
        build, shard = build_of(self.a), self._shard(self.a, "shard")
        program = self.a.case.program
        again = tuple(
            self._shard(self.a.at(i), _shard_at(i))
            for i in range(len(program))
            if self.a.at(i) is not self.a.at(i - 1)
        )
        # Under the first plan again afterwards: making the operations moves on through all plans.
        main = tuple(self._main())
        self.a = self._first
        return Recipe(procedures=(build, shard, *again), main=main)

    def _shard(self, a: Anatomy, name: str) -> Procedure:
        # A policy names classes; one of ours that the model is not made of a script would import in
        # vain.
        classes = {value.function for value in values(module_of(self.a)) if isinstance(value, Call)}
        mesh = mesh_of(a) if self._single_use_of_mesh else Variable("mesh")
        return replace(Wrapping(a, mesh, classes).procedure(), name=name)

    @property
    def shard(self) -> str:
        """The procedure that shards a model as the plan says that holds now."""
        first = self._first
        changes = [i for i in range(self._op + 1) if first.at(i) is not first.at(i - 1)]
        return _shard_at(changes[-1]) if changes else "shard"

    def made_again(self) -> Iterator[Statement]:
        """Another model with its optimizer in place of FSDP's, every element changed.

        What the program has frozen and unfrozen so far is so in it as well, and it is in train
        mode or in eval mode as the one before it was: neither is saved.
        """
        blank = call(state_step(self.a, "blank"), call("recipe.build", _DTYPE))
        yield Do(call=blank, into=(MODEL,), who="fsdp")
        for statement in self._wrapped(self.shard):
            if statement.who != "reference":
                yield replace(statement, who="fsdp")
        yield from scaler_made_again(self.a)
        now = self._now()
        for value, names in now.changed(self.a.frozen):
            if names:
                yield from self.require_grad(names, value)
        if not now.training:
            yield Do(call=call(".eval", MODEL), who="fsdp")

    def _now(self) -> Situation:
        """The situation in which rank 0 runs this operation."""
        return next(now for i, _, now in self._first.situations(0) if i == self._op)

    def _wrapped(self, shard: str) -> Iterator[Do]:
        """Puts FSDP around the model, and an optimizer beside it.

        The ``shard`` of an imported model's target may make both at once.
        """
        own, asked = self.a.imported, self.a.case.optimizer
        both = own is not None and own.optimizes and asked is not None and asked.name == "own"
        if own is not None and both and goes_through(self._first):
            yield from Wrapping(self.a, None, ()).before()
            made = call(
                "steps.modules.imported.both", MODEL, Global(own.function("shard")), _DEVICE
            )
            yield Do(call=made, into=(MODEL, OPTIMIZER), who="fsdp")
        else:
            yield Do(call=call(f"recipe.{shard}", MODEL), into=(MODEL,))
        # Right after the wrapping, and before the optimizer: once a unit is whole the model
        # registers other parameters than those that are trained.
        named = call("steps.names.parameters", MODEL, names_are_prefixed(self.a))
        yield Do(call=named, into=(_NAMED,))
        if goes_through(self._first):
            yield from self.new_optimizer(who="reference" if both else "both")

    def new_optimizer(self, *, who: Who = "both") -> Iterator[Do]:
        """An optimizer over the parameters that the case does not hold out."""
        optimizer = self.a.case.optimizer
        if optimizer is not None:
            yield Do(call=self._optimizer(optimizer), into=(OPTIMIZER,), who=who)

    def _optimizer(self, asked: Optimizer) -> Call:
        own = self.a.imported
        if own is not None and asked.name == "own":
            return call(own.function("optimizer"), self.trained())
        return asked.made(self.trained())

    def sharing(self, rank: int) -> tuple[int, ...]:
        """The ranks that take the same batch as ``rank``, itself among them."""
        return sharing(self.a.case, rank)

    def next_index(self) -> Index:
        """The number of the next forward."""
        self._forwards += 1
        return Index(self._forwards - 1)

    @property
    def coming_index(self) -> Index:
        """The number of the forward that comes next."""
        return Index(self._forwards)

    def called(self, module: Variable | Inside, x: Value, *, by_method: bool) -> Call:
        """A call of a module, through a checkpoint where the caller has to look for one."""
        if self.a.imported is not None:
            return output_of(self.a.imported, module, x)
        path = module.path if isinstance(module, Inside) else ""
        given = call(module, x)
        if named(self.a, path):
            given = call(module, **{self.a.by_path[path].takes: x})
        if by_method:
            # As a value: a script hands its function of forwards what each of them calls.
            return replace(given, function=Inside("model", join(path, METHOD)))
        if any(c.path == path and c.by_caller(self.a) for c in self.a.case.checkpoints):
            asks = "steps.checkpointing.call"
            return replace(given, function=asks, args=(module, *given.args))
        return given

    def before_forward(self) -> Iterator[Statement]:
        """The memory tracker's figures by module are those of one iteration."""
        if "mem_tracker" in self.a.case.probes and not self._pending:
            yield Do(call=call(".reset_mod_stats", Variable("tracker")))

    def after_forward(self, op: Op) -> Iterator[Statement]:
        """What is kept of each forward."""
        self._pending += op.waits
        yield from self._keep

    def before_backward(self) -> Iterator[Statement]:
        """Puts aside, in the plain model, gradients that fsdp1 replaces."""
        yield from forget_replaced(self.a) if self.reduced else ()

    def after_backward(self) -> Iterator[Statement]:
        """Averages the plain model's gradients, where FSDP reduces its own."""
        yield from keep_others(self.a) if self.reduced else ()
        self.reduced = not self._unreduced
        self._pending = 0
        now = self._now() if self.a.numbered else None
        self._given |= now.given if now else set()
        if self._unreduced:
            return
        given, self._given = self._given, set()
        yield from finished(self.a)
        # FSDP leaves these as each rank has them, and so has the plain model to.
        parameters = call(".parameters", MODEL)
        if self.a.unmanaged:
            parameters = call("steps.names.others", _NAMED, literal(self.a.unmanaged))
        if any(op.parts_ranks for op in self.a.case.program):
            filled = call("steps.averaging.fill", parameters, _DEVICE)
            yield Do(call=filled, who="averaging")
        # Of a unit that got none at all the gradients stay as they are:
        # ``_use_sharded_grad_views`` in fsdp/_flat_param.py runs where it got some.
        exact = now is not None and not self.a.switches
        units = graded_together(self.a)
        if together := tuple(u for u in units if not exact or given.intersection(u)):
            zeros = call("steps.averaging.fill_together", _NAMED, literal(together))
            yield Do(call=zeros, who="averaging")
        if self.a.fsdp1 and now is not None and (lacking := now.zeros):
            listed = literal(self.a.canonical_names(sorted(lacking)))
            yield Do(call=call("steps.averaging.zeros", _NAMED, listed), who="averaging")
        yield average(self._first, parameters, who="averaging")

    def require_grad(self, names: Sequence[str], value: bool) -> Iterator[Statement]:
        """Freezes or unfreezes parameters, in FSDP and in the plain model."""
        first = self.a.canonical_names(names)
        second = self.held_in(names)
        if second == first:
            yield self._require(first, value)
            return
        changed = self._require(tuple(dict.fromkeys((*first, *second))), value, some=True)
        yield changed

    def _require(self, names: Sequence[str], value: bool, *, some: bool = False) -> Do:
        options: dict[str, Value] = {"some": True} if some else {}
        known = literal(tuple(names))
        return Do(call=call("steps.freezing.require_grad", _NAMED, known, value, **options))

    # Without use_orig_params an optimizer holds the flat parameter: leaving it out for one of its
    # parts would leave out the others, hence ``whole``; freezing cannot tell them apart at all.
    def held_in(self, names: Sequence[str], *, whole: bool = False) -> tuple[str, ...]:
        """The names under which FSDP's model shows these parameters.

        A flat parameter stands for any of its parts; with ``whole`` only if all of them are
        among the names. A tied parameter goes by its source's name.
        """
        a, wanted = self.a, set(names)
        wanted |= {target for target, source in a.source.items() if source in wanted}
        found: list[str] = []
        for owner, parameters in a.managed.items():
            held = [p.fqn for p in parameters if p.fqn in wanted]
            unit = None if owner is None else a.options[owner]
            if owner is None or unit is None or not unit.flat:
                found += held
            elif held and (not whole or len(held) == len(parameters)):
                found.append(join(owner, FLAT))
        return tuple(found)

    @property
    def _single_use_of_mesh(self) -> bool:
        """Whether one unit is made, once, so that nobody else needs the mesh.

        One with names does not fit in a line with ``fully_shard``; ``FSDP`` takes several anyway.
        """
        saves = [op for op in self.a.case.program if op.wraps]
        again = any(not isinstance(op, StateDict) or self.loads_state for op in saves)
        return (
            len(self.a.plan.units) == 1
            and not again
            and (self.a.fsdp1 or self.a.case.mesh is None)
            and self.a.case.tensor_parallel is None
            and self.a.case.spmd_mesh is None
        )

    def _main(self) -> Iterator[Statement]:
        case = self.a.case
        mesh = mesh_of(self.a)
        if mesh is not None and not self._single_use_of_mesh:
            beside = (AXIS,) if takes_axis(self.a) else ()
            yield Do(call=mesh, into=(Variable("mesh"), *beside), who="fsdp")
        yield Do(call=call("recipe.build", _DTYPE), into=(MODEL,))
        own, weights = self.a.imported, Variable("weights")
        loads = own is not None and own.loads
        if loads:
            other = call("steps.modules.imported.weights", call("recipe.build", _DTYPE))
            yield Do(call=other, into=(weights,))
            # The plain model loads before DDP wraps it; FSDP's loads
            # once it is sharded, as its own code does.
            yield Do(call=call(".load_state_dict", MODEL, weights), who="reference")
        yield from self._wrapped("shard")
        if own is not None and loads:
            yield Do(call=call(own.function("load"), MODEL, call(".copy", weights)), who="fsdp")
        yield from followed(self.a)
        yield from hooked(self.a)
        yield from scaler_of(self.a)
        if keeps_losses(self._first.case):
            yield Do(call=Items("list", ()), into=(Variable("pending"),))
        tracked = "mem_tracker" in case.probes
        operations = tuple(self._operations())
        if tracked:
            optimizer: Value = OPTIMIZER if goes_through(self._first) else None
            tracker = Variable("tracker")
            yield Do(call=call(TRACKER, MODEL, optimizer), into=(tracker,))
            yield With(context=tracker, body=operations)
        else:
            yield from operations

    def trained(self) -> Value:
        """The parameters that the optimizer gets."""
        out = self.a.case.held_out
        if not out:
            return call(".parameters", MODEL)
        names = dict.fromkeys((*self.a.canonical_names(out), *self.held_in(out, whole=True)))
        return call("steps.names.others", _NAMED, literal(tuple(names)))

    def _operations(self) -> Iterator[Statement]:
        left = list(enumerate(self.a.case.program))
        while left:
            i, op = left.pop(0)
            if op.reduces or not op.waits:
                yield self._operation(i, op)
                continue
            self._unreduced = True
            body = [self._operation(i, op)]
            while left and not op.gives_gradients:
                i, op = left.pop(0)
                body.append(self._operation(i, op))
            self._unreduced = False
            yield self._unsynchronised(tuple(body))

    def _operation(self, i: int, op: Op) -> Operation:
        # Each operation is made under the plan that holds by then.
        self._op, self.a = i, self._first.at(i)
        body = (*lagging(self.a.case, op), *op.steps(self))
        return Operation(op=i, name=op.kind(), body=body)

    def _unsynchronised(self, body: tuple[Statement, ...]) -> Unsynchronised:
        # The same body serves both: FSDP reads its flags in backward (``_sync_gradients``, and
        # ``reduce_grads`` of fsdp2), so the backward has to lie inside with its forwards.
        rooted = "" in self.a.options
        around = any(not c.path and c.side == "around" for c in self.a.case.checkpoints)
        if self.a.fsdp1:
            # ``no_sync`` raises for any FSDP module but a root, and a wrapper is no FSDP module.
            name = ".no_sync" if rooted and not around else "steps.fsdp1.no_sync.no_sync"
            return Unsynchronised(body=body, context=call(name, MODEL))
        before, after = (Do(call=c, who="fsdp") for c in told(self.a.case, rooted=rooted))
        return Unsynchronised(body=body, before=before, after=after)


def _shard_at(op: int) -> str:
    return f"shard_at_{op}"


def lower(a: Anatomy, *, loads_state: bool = True, keep: Sequence[Statement] = ()) -> Recipe:
    """The recipe of a case. See `Lowering` for the options."""
    if loads_state and not keep:
        return _trained(a)
    return Lowering(a, loads_state=loads_state, keep=keep).recipe()


@lru_cache(maxsize=8)
def _trained(a: Anatomy) -> Recipe:
    """What the reference and FSDP train, one after the other."""
    return Lowering(a).recipe()
