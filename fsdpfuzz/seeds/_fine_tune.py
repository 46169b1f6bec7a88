"""Document 002: frozen parameters, in units of their own.

The bodies of ``test_backward_reshard_hooks`` and the helpers around it are lost in the
document; its docstring says what they hold FSDP to: every unit is resharded after each
backward, frozen or not. A forward without gradient lies between the two backwards, since
hooks that it left behind would show in the second.
"""

from __future__ import annotations

from itertools import product
from typing import Literal

from fsdpfuzz.case import (
    Activation,
    Backward,
    Branches,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Op,
    Optimizer,
    Precision,
    Repeat,
    RequiresGrad,
    Sequential,
    Sharding,
    Step,
    Variant,
    ZeroGrad,
)
from fsdpfuzz.seeds._base import Seed
from fsdpfuzz.seeds._checkpoint import OFFLOAD_NEEDS

NUM_LINEARS = 6
SEED = 42
ADAM = Optimizer(name="adam", lr=1e-2, eps=1e-8)
_TRAINING: tuple[Op, ...] = (Forward(), Backward(), Step(), ZeroGrad()) * 6
_STRATEGIES: tuple[Sharding, ...] = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
_PREFETCHES: tuple[Literal["BACKWARD_PRE", "BACKWARD_POST"], ...] = (
    "BACKWARD_PRE",
    "BACKWARD_POST",
)
_HALF = Precision(param="float16", reduce="float16", buffer="float16")

_SEQUENCE = Sequential(children=(Linear(out=5), Activation(fn="relu")) * NUM_LINEARS)
_EVERY_OTHER = tuple(
    f"{2 * i}.{name}" for i in range(0, NUM_LINEARS, 2) for name in ("weight", "bias")
)
"""The parameters of every other linear layer, the first one's among them."""


def _by_class(kind: str, root: Fsdp1Unit) -> Fsdp1Plan:
    """Each module of one class is a unit, and the root."""
    return Fsdp1Plan(units=(root,), wrap="module_classes", classes=(kind,))


def _reshard_hooks(
    sharding: Sharding, orig: bool, inp_requires_grad: bool, unfreeze: bool
) -> CaseSpec:
    between: tuple[Op, ...] = (Forward(grad=False),)
    if unfreeze:
        between = (*between, RequiresGrad(parameters=_EVERY_OTHER, value=True))
    return CaseSpec(
        world_size=2,
        seed=SEED,
        model=_SEQUENCE,
        inputs=Dense(width=5, batch=8, requires_grad=inp_requires_grad),
        plan=_by_class("linear", Fsdp1Unit(path="", sharding=sharding, use_orig_params=orig)),
        frozen=_EVERY_OTHER,
        optimizer=None,
        program=(Forward(), Backward(), *between, Forward(), Backward()),
        loss="sum",
    )


def _multi_traversal(
    sharding: Sharding, orig: bool, inp_requires_grad: bool, forward_prefetch: bool
) -> CaseSpec:
    """A layer, then ten times a trained layer, a frozen one, and the trained one without grad."""
    linear = Linear(out=5)
    body = Sequential(children=(linear, linear))
    return CaseSpec(
        world_size=2,
        seed=SEED,
        model=Sequential(children=(linear, Repeat(body=body, times=10, no_grad="first_child"))),
        inputs=Dense(width=5, batch=8, requires_grad=inp_requires_grad),
        plan=_by_class(
            "linear",
            Fsdp1Unit(
                path="",
                sharding=sharding,
                use_orig_params=orig,
                forward_prefetch=forward_prefetch,
            ),
        ),
        frozen=("1.body.1.weight", "1.body.1.bias"),
        optimizer=ADAM,
        program=_TRAINING,
        loss="sum",
    )


def _parity_with_ddp(sharding: Sharding, orig: bool) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        seed=SEED,
        model=_SEQUENCE,
        inputs=Dense(width=5, batch=8),
        plan=_by_class("linear", Fsdp1Unit(path="", sharding=sharding, use_orig_params=orig)),
        frozen=_EVERY_OTHER,
        optimizer=ADAM,
        program=_TRAINING,
        loss="sum",
    )


def _non_frozen(
    sharding: Sharding,
    orig: bool,
    offload: bool,
    precision: Precision | None,
    prefetch: Literal["BACKWARD_PRE", "BACKWARD_POST"],
) -> CaseSpec:
    """Three layers beside each other that also get an input which they do not use.

    The document passes its input that requires no grad for both.
    """
    middle = tuple(f"branches.1.inner.{name}" for name in ("weight", "bias"))
    return CaseSpec(
        world_size=2,
        seed=SEED,
        model=Branches(children=(Linear(out=4),) * 3, merge="stack", side=True),
        inputs=Dense(width=4, batch=4),
        plan=_by_class(
            "sided",
            Fsdp1Unit(
                path="",
                sharding=sharding,
                use_orig_params=orig,
                cpu_offload=offload,
                precision=precision,
                backward_prefetch=prefetch,
            ),
        ),
        frozen=middle,
        optimizer=ADAM,
        program=_TRAINING,
        loss="sum",
        twins=(Variant(name="held_out", frozen=(), held_out=middle),),
    )


def _seeds() -> tuple[Seed, ...]:
    flags = (False, True)
    seeds = [
        Seed(
            document="002",
            test="test_backward_reshard_hooks",
            params=f"sharding_strategy={s},use_orig_params={o},inp_requires_grad={i},"
            f"unfreeze_params={u}",
            case=_reshard_hooks(s, o, i, u),
        )
        for s, o, i, u in product(_STRATEGIES, flags, flags, flags)
    ]
    seeds += [
        Seed(
            document="002",
            test="test_hooks_multi_traversal",
            params=f"sharding_strategy={s},use_orig_params={o},inp_requires_grad={i},"
            f"forward_prefetch={f}",
            case=_multi_traversal(s, o, i, f),
        )
        for s, o, i, f in product(_STRATEGIES, flags, flags, flags)
    ]
    seeds += [
        Seed(
            document="002",
            test="test_parity_with_ddp",
            params=f"sharding_strategy={s},use_orig_params={o}",
            case=_parity_with_ddp(s, o),
        )
        for s, o in product(_STRATEGIES, flags)
    ]
    seeds += [
        Seed(
            document="002",
            test="test_parity_with_non_frozen_fsdp",
            params=f"sharding_strategy={s},use_orig_params={o},offload_params={c},"
            f"mixed_precision=MixedPrecision({'' if p is None else 'float16'}),"
            f"backward_prefetch={b}",
            case=_non_frozen(s, o, c, p, b),
            needs=OFFLOAD_NEEDS if c else (),
        )
        for s, o, c, p, b in product(
            _STRATEGIES[:2], (True, False), (True, False), (None, _HALF), _PREFETCHES
        )
    ]
    return tuple(seeds)


FINE_TUNE: tuple[Seed, ...] = _seeds()
"""The eighty-six parametrisations, in the order of the document."""
