"""A forward on fresh inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import ModulePath, Rank, on
from fsdpfuzz.case.dimension import ON, Feature, Simpler
from fsdpfuzz.case.flow import read_by
from fsdpfuzz.case.loss import forgotten, loss_into
from fsdpfuzz.case.micro_batches import put_off
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.base import OperationBase, Progress, Word
from fsdpfuzz.case.operations.mode import Mode
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.randomness import seeded
from fsdpfuzz.case.recipe import (
    MODEL,
    Do,
    Inside,
    Statement,
    Variable,
    With,
    call,
)
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


class Forward(OperationBase, tag="forward", frozen=True, kw_only=True):
    """One forward on fresh inputs; the loss stays pending until `backward`.

    ``sync=False`` is gradient accumulation without communication (``no_sync``).
    """

    runs_model: ClassVar[bool] = True
    casts_buffers: ClassVar[bool] = True
    features: ClassVar[Mapping[str, Feature]] = {
        "accumulation": Feature(
            about="off, sync, no_sync", group="Training", values=("off", "sync", "no_sync")
        ),
        "non_root_forward": Feature(
            about="on when a module other than the root is called by itself",
            group="Training",
            values=ON,
        ),
        "lone_forward": Feature(
            about="no, no_grad (or inference_mode), dropped (gradients are recorded, but no "
            "backward follows), several",
            group="Training",
            values=("no", "no_grad", "dropped", "several"),
        ),
        "pending": Feature(
            about="1 or 2+ forwards before one backward", group="Training", values=("1", "2+")
        ),
        "recorded": Feature(
            about="1 or 2+ forwards that record gradients before one backward ends, also those "
            "whose loss is thrown away, or that an exception ends",
            group="Training",
            values=("1", "2+"),
            excludes={"1": {"pending": ("2+",)}},
        ),
        "meanwhile": Feature(
            about="which forward without a backward comes between another one and its backward: "
            "no, no_grad, dropped, inference_mode (of several the last in this list)",
            group="Training",
            values=("no", "no_grad", "dropped", "inference_mode"),
            excludes={
                "no_grad": {"lone_forward": ("no", "dropped")},
                "dropped": {
                    "lone_forward": ("no", "no_grad"),
                    "recorded": ("1",),
                    "unit_called_again": ("off",),
                },
                "inference_mode": {
                    "lone_forward": ("no", "dropped"),
                    "inference_mode": ("no",),
                },
            },
        ),
        "inference_mode": Feature(
            about="no, later, first (before any other forward of a unit): when a forward is under "
            "torch.inference_mode",
            group="Training",
            values=("no", "later", "first"),
            excludes={
                value: {"lone_forward": ("no", "dropped"), "mem_tracker": ("on",)}
                for value in ("later", "first")
            },
        ),
    }
    program_words: ClassVar[Mapping[str, Word]] = {
        "eval": Word(
            about="a forward in eval mode under no_grad, and back to train mode",
            means=lambda _: (Mode(train=False), Forward(grad=False), Mode(train=True)),
        )
    }

    sync: bool = True
    grad: bool = True
    inference: bool = False
    """Without ``grad`` under ``torch.inference_mode`` in place of ``torch.no_grad``."""
    drop: bool = False
    """Throws the loss away: gradients are recorded, but no backward follows."""
    target: ModulePath = ""
    """FQN of the module that is called instead of the root; its width is the inputs'."""
    by_method: bool = False
    """Calls ``encode`` of the target, not the target itself."""
    masked: Rank | None = None
    """The rank on which the loss is an exact zero."""

    @property
    def waits(self) -> bool:
        """Whether it gives a loss that waits for a backward."""
        return self.grad and not self.drop

    @property
    def reduces(self) -> bool:
        """With ``sync``."""
        return self.sync

    @property
    def called(self) -> str:
        """The target."""
        return self.target

    @property
    def calls_method(self) -> bool:
        """Where that is asked for."""
        return self.by_method

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """The target takes the inputs; forwards before one backward agree on ``sync``."""
        if self.target:
            check_names((self.target,), a.by_path, f"{at}.target", "module")
            if not a.by_path[self.target].callable_alone:
                raise CaseError(
                    f"{self.target!r} takes, or returns, more than one tensor, or has no forward",
                    path=f"{at}.target",
                )
            takes, given = a.by_path[self.target].width_in, a.width_in
            if takes != given:
                raise CaseError(
                    f"{self.target!r} takes width {takes}, the inputs have {given}",
                    path=f"{at}.target",
                )
        if self.inference and self.grad:
            raise CaseError("inference_mode records no gradients", path=f"{at}.inference")
        if self.waits:
            progress.pending.append(self.sync)
            # FSDP looks in backward whether to reduce (``_post_backward_hook`` in
            # fsdp/_runtime_utils.py, ``FSDPParamGroup.post_backward``): one backward reduces for
            # all of its forwards, or for none.
            if len(set(progress.pending)) > 1:
                raise CaseError("forwards before one backward must agree on sync", path=at)

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """Inputs, output and loss, which waits in ``pending`` where others come meanwhile."""
        a, index = lowering.a, lowering.next_index()
        x, output, loss = Variable("x"), Variable("output"), Variable("loss")
        yield from lowering.before_forward()
        yield Do(call=a.case.inputs.drawn(a, index), into=(x,))
        yield from seeded(a, index)
        yield from forgotten(a)
        module = Inside("model", self.target) if self.target else MODEL
        run: list[Statement] = [
            Do(call=lowering.called(module, x, by_method=self.by_method), into=(output,)),
            *loss_into(a, loss),
        ]
        if self.masked is not None:
            zero = call("steps.masked.nothing_of", loss)
            run.append(Do(call=zero, into=(loss,), ranks=lowering.sharing(self.masked)))
        if self.grad:
            yield from run
        else:
            mode = "torch.inference_mode" if self.inference else "torch.no_grad"
            yield With(context=call(mode), body=tuple(run))
        yield from lowering.after_forward(self)
        if keeps_losses(a.case) and self.waits:
            yield Do(call=call(".append", Variable("pending"), loss))

    def words(self) -> str:
        """``forward of 0 no_sync``."""
        words = ["forward"]
        words += [f"of {self.target}"] if self.target else []
        words += ["by encode"] if self.by_method else []
        words += [] if self.sync else ["no_sync"]
        words += [] if self.grad else ["inference_mode" if self.inference else "no_grad"]
        words += ["dropped"] if self.drop else []
        words += [] if self.masked is None else [f"masked on rank {self.masked}"]
        return " ".join(words)

    def moves(self, now: Situation, a: Anatomy, rank: int) -> None:
        """One more; what it reads waits for a backward."""
        now.forwards += 1
        if self.waits and a.numbered:
            called = {call.path for call in a.calls(self, now)}
            now.read.update(read_by(a, called, self.target))

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """How forwards and backwards lie to each other."""
        forwards = [op for op in a.case.program if isinstance(op, Forward)]
        yield "accumulation", _accumulation(a.case)
        yield "non_root_forward", on(any(op.target for op in forwards))
        lone = {"no_grad" if not op.grad else "dropped" for op in forwards if not op.waits}
        yield "lone_forward", "several" if len(lone) > 1 else next(iter(lone), "no")
        yield "pending", "2+" if most_pending(a.case) > 1 else "1"
        yield "recorded", "2+" if most_recorded(a.case) > 1 else "1"
        yield "meanwhile", _meanwhile(a.case)
        under = "first" if begun_in_inference(a) else "later"
        yield "inference_mode", under if any(op.inference for op in forwards) else "no"

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """Synchronised; under ``no_grad``; of the root; by ``forward``; without a backward."""
        program = case.program
        replace = msgspec.structs.replace
        if any(isinstance(op, Forward) and not op.sync for op in program):
            synced = [replace(op, sync=True) if isinstance(op, Forward) else op for op in program]
            yield Simpler(replace(case, program=tuple(synced)), "no_sync")
        if any(isinstance(op, Forward) and op.inference for op in program):
            usual = [
                replace(op, inference=False) if isinstance(op, Forward) else op for op in program
            ]
            yield Simpler(replace(case, program=tuple(usual)), "torch.inference_mode")
        if calls_below_the_root(program):
            root = [replace(op, target="") if isinstance(op, Forward) else op for op in program]
            words = "a forward of another module than the root"
            yield Simpler(replace(case, program=tuple(root)), words)
        if any(op.calls_method for op in program):
            plain = [replace(op, by_method=False) if op.calls_method else op for op in program]
            words = "register_fsdp_forward_method"
            yield Simpler(replace(case, program=tuple(plain)), words)
        if sum(op.gives_gradients for op in program) == 1:
            # An evaluation in place of the only iteration, which may be all that there is.
            for i, (op, following) in enumerate(pairwise(program)):
                if isinstance(op, Forward) and op.waits and op.sync and following.gives_gradients:
                    alone = Forward(grad=False, target=op.target, by_method=op.by_method)
                    left = (*program[:i], alone, *program[i + 2 :])
                    yield Simpler(replace(case, program=left))


def calls_below_the_root(program: Iterable[object]) -> bool:
    """Whether any forward is of another module than the root."""
    return any(isinstance(op, Forward) and bool(op.target) for op in program)


def accumulates(program: Iterable[object]) -> bool:
    """Whether gradients of some forward are not reduced in its backward."""
    return any(isinstance(op, Forward) and not op.sync for op in program)


# A root by default: ``_lazy_init`` takes its resharding after forward away, as backward follows.
def leaves_units_whole(program: Iterable[object]) -> bool:
    """Whether some forward has no backward, after which fsdp2's units may stay whole."""
    return any(isinstance(op, Forward) and not op.waits for op in program)


def pending_before(program: Iterable[OperationBase]) -> Iterator[bool]:
    """For each operation whether a loss waits for its backward by then."""
    pending = False
    for op in program:
        yield pending
        pending = op.waits or (pending and not op.renews and not op.gives_gradients)


def most_pending(case: CaseSpec) -> int:
    """The largest number of losses that wait for one backward."""
    return _most(case, lambda op: op.waits)


def _before_the_backward_of_another(case: CaseSpec) -> Iterator[Forward]:
    for op, pending in zip(case.program, pending_before(case.program), strict=True):
        if pending and isinstance(op, Forward):
            yield op


def keeps_losses(case: CaseSpec) -> bool:
    """Whether a loss waits for its backward while another one is computed."""
    return any(_before_the_backward_of_another(case))


def _meanwhile(case: CaseSpec) -> str:
    """How those forwards are that come between another one and its backward, which they lack."""
    found = {
        "dropped" if op.grad else "inference_mode" if op.inference else "no_grad"
        for op in _before_the_backward_of_another(case)
        if not op.waits
    }
    return next((how for how in ("inference_mode", "dropped", "no_grad") if how in found), "no")


def most_recorded(case: CaseSpec) -> int:
    """The largest number of forwards with gradients from one backward to the next."""
    return _most(case, lambda op: op.interrupts or (isinstance(op, Forward) and op.grad))


def _most(case: CaseSpec, counts: Callable[[OperationBase], bool]) -> int:
    number = most = 0
    for op in case.program:
        if op.gives_gradients or op.renews or op.starts_over:
            number = 0
        elif counts(op):
            number += 1
            most = max(most, number)
    return most


def _accumulation(case: CaseSpec) -> str:
    if any(isinstance(op, Forward) and op.grad and not op.sync for op in case.program):
        return "no_sync"
    backwards = 0
    for op in case.program:
        if op.gives_gradients:
            backwards += 1 + op.goes_back_again
        elif op.clears_gradients or op.renews:
            backwards = 0
        if backwards > 1:
            return "sync"
    return "off"


@lru_cache(maxsize=64)
def reduced_again(a: Anatomy, *, zeros: bool = False) -> frozenset[str]:
    """Units of which a backward meets reduced gradients; ``zeros`` counts those zeroed in place."""
    reduced: set[str] = set()
    found: set[str] = set()
    sync = True
    for i, op, now in a.situations(0):
        reduced = set() if op.clears_gradients and not zeros else reduced & now.graded
        if isinstance(op, Forward) and op.waits:
            sync = op.sync
        elif op.gives_gradients:
            trained = {p.fqn for p in a.distinct if now.trained[p.fqn]}
            reducing = trained if sync else trained - put_off(a.at(i), trained)
            met = reduced & trained | (reducing if op.goes_back_again else set())
            found |= {owner for n in met if (owner := a.at(i).owners[n]) is not None}
            reduced |= reducing
    return frozenset(found)


# What comes to be under inference mode takes part in no autograd graph, and nobody may write into
# it outside of that mode. fsdp1 makes the memory of all units of a root when that is called first
# (``_lazy_init`` in fsdp/_runtime_utils.py, ``FlatParamHandle.init_flat_param_attributes`` in
# fsdp/_flat_param.py), fsdp2 that of a unit when it is gathered first
# (``FSDPParam.init_all_gather_outputs`` in fsdp/_fully_shard/_fsdp_param.py).
@lru_cache(maxsize=64)
def begun_in_inference(a: Anatomy) -> frozenset[str]:
    """Units that FSDP makes ready in a forward under ``torch.inference_mode``."""
    found: set[str] = set()
    under = any(isinstance(op, Forward) and op.inference for op in a.case.program)
    for rank in a.telling_ranks if under else ():
        ready: set[str] = set()
        for i, op, now in a.situations(rank):
            b = a.at(i)
            if op.renews:
                ready.clear()
            if isinstance(op, Forward):
                called = {b.unit_at[c.path] for c in b.calls(op, now) if c.path in b.unit_at}
                if b.fsdp1:
                    roots = [root for root in b.roots if root in called]
                    called = {u for u in b.units if any(within(u, root) for root in roots)}
                found |= called - ready if op.inference else set()
                ready |= called
            elif op.looks_whole and (b.fsdp1 or not op.wraps):
                # ``summon_full_params``, and ``unshard`` by hand; fsdp2 saves a state without it.
                ready |= set(b.units)
    return frozenset(found)


def cut_gradients(a: Anatomy, *, plain: bool) -> frozenset[tuple[int, int, str]]:
    """What reentrant checkpoints leave without the gradient it would have, under FSDP or without.

    By rank, operation and the checkpoint's FQN: where its module is called with inputs of which
    none requires grad, as ``torch.utils.checkpoint`` warns.
    """
    reentrant = {c.path for c in a.case.checkpoints if c.reentrant}
    found: set[tuple[int, int, str]] = set()
    for rank in range(a.case.world_size if a.switches else 1) if reentrant else ():
        for i, op, now in a.situations(rank):
            if not isinstance(op, Forward):
                continue
            for called in a.calls(op, now, plain=plain):
                if called.path in reentrant and called.grad and not called.input_grad:
                    trained = (fqn for fqn, on in now.trained.items() if on)
                    if any(within(fqn, called.path) for fqn in trained):
                        found.add((rank, i, called.path))
    return frozenset(found)
