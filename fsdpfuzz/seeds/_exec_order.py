"""Document 003: ranks that take different paths through the model.

The two paths have units of 36 elements each, so that their collectives match silently when
nothing checks the order.
"""

from __future__ import annotations

from itertools import product

from fsdpfuzz.case import (
    Activation,
    Backward,
    CaseSpec,
    Dense,
    Flip,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Mode,
    Op,
    Sequential,
    Sharding,
    Switch,
)
from fsdpfuzz.seeds._base import Seed

NUM_ITERS = 3
NUM_EPOCHS = 2
_STRATEGIES: tuple[Sharding, ...] = ("FULL_SHARD", "SHARD_GRAD_OP")
_RELU = Activation(fn="relu")
_PATHS = Switch(
    children=(
        Linear(out=6, bias=False),
        Sequential(children=(Linear(out=3, bias=False), _RELU, Linear(out=6, bias=False))),
    )
)
_TAKEN, _OTHER = "2.branches.0", "2.branches.1"
_ALL_BUT_RANK_0 = Flip(path="2", ranks=(1,))
_ITERATION: tuple[Op, ...] = (Forward(), Backward())
_EPOCH: tuple[Op, ...] = (
    Mode(train=True),
    *_ITERATION * NUM_ITERS,
    Mode(train=False),
    *(Forward(drop=True),) * NUM_ITERS,
)


def _case(sharding: Sharding, program: tuple[Op, ...]) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=6), _RELU, _PATHS, _RELU)),
        inputs=Dense(width=5, batch=8),
        plan=Fsdp1Plan(
            units=tuple(Fsdp1Unit(path=path, sharding=sharding) for path in ("", _TAKEN, _OTHER))
        ),
        frozen=(f"{_OTHER}.0.weight", f"{_OTHER}.2.weight"),
        optimizer=None,
        program=program,
        loss="sum",
        debug_level="DETAIL",
    )


EXEC_ORDER: tuple[Seed, ...] = (
    *(
        Seed(
            document="003",
            test="test_invalid_first_iter_order",
            params=f"sharding_strategy={sharding}",
            case=_case(sharding, (_ALL_BUT_RANK_0, Forward())),
        )
        for sharding in _STRATEGIES
    ),
    *(
        Seed(
            document="003",
            test="test_invalid_later_iter_order",
            params=f"sharding_strategy={sharding},iters_before_path_change={iters}",
            case=_case(sharding, (*_ITERATION * iters, _ALL_BUT_RANK_0, *_ITERATION * 2)),
        )
        for sharding, iters in product(_STRATEGIES, (1, 3))
    ),
    *(
        Seed(
            document="003",
            test="test_train_eval",
            params=f"sharding_strategy={sharding}",
            case=_case(sharding, _EPOCH * NUM_EPOCHS),
        )
        for sharding in _STRATEGIES
    ),
)
"""The eight parametrisations, in the order of the document."""
