"""Document 001: the full state dict of a wrapped model, saved and loaded.

The document wraps with the composable ``fully_shard(policy=...)``, which is gone. Each seed
restates it on ``FullyShardedDataParallel`` and carries a variant on today's ``fully_shard``.

The document's model has a linear layer, two units and, in the root, a parameter and a buffer
of 100 x 100. `Matrix` holds both; a unit is a `Repeat` that runs once, which is what gives it
a class of its own for ``ModuleWrapPolicy``.
"""

from __future__ import annotations

from fsdpfuzz.case import (
    Activation,
    CaseSpec,
    Dense,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Matrix,
    Node,
    Plan,
    Repeat,
    Sequential,
    StateDict,
    Tokens,
    Transformer,
    Variant,
)
from fsdpfuzz.seeds._base import Seed

WIDTH = 100
_LAYERS = tuple(
    f"transformer.{stack}.layers.{i}" for stack in ("encoder", "decoder") for i in range(2)
)
_TRANSFORMER = (*_LAYERS, "transformer.encoder.norm", "transformer.decoder.norm")
"""All of the document's ignored module that has parameters."""


def _unit() -> Node:
    """Linear, (relu, linear, relu), linear."""
    relu = Activation(fn="relu")
    middle = Sequential(children=(relu, Linear(out=WIDTH), relu))
    return Repeat(body=Sequential(children=(Linear(out=WIDTH), middle, Linear(out=WIDTH))), times=1)


def _composite(plan: Plan, variant: Plan) -> CaseSpec:
    layers = Sequential(children=(Linear(out=WIDTH), _unit(), _unit()))
    return CaseSpec(
        world_size=2,
        model=Matrix(body=layers, buffered=True),
        inputs=Dense(width=WIDTH),
        plan=plan,
        optimizer=None,
        program=(StateDict(),),
        twins=(Variant(name="fsdp2", plan=variant),),
    )


def _root() -> CaseSpec:
    """Units by class, and the root."""
    return _composite(
        Fsdp1Plan(units=(Fsdp1Unit(path=""),), wrap="module_classes", classes=("repeat",)),
        _fsdp2("body.1", "body.2", ""),
    )


def _submodules() -> CaseSpec:
    """The units alone: the root, with a parameter and a buffer of its own, is none."""
    return _composite(
        Fsdp1Plan(units=(Fsdp1Unit(path="body.1"), Fsdp1Unit(path="body.2"))),
        _fsdp2("body.1", "body.2"),
    )


def _mixed() -> CaseSpec:
    """One unit sharded inside a root that is not.

    fsdp2 has no unsharded strategy; its variant leaves the root out of the plan, so that each
    rank holds it whole as under ``NO_SHARD``.
    """
    inner = Fsdp1Unit(path="body.1", sharding="FULL_SHARD")
    return _composite(
        Fsdp1Plan(units=(inner, Fsdp1Unit(path="", sharding="NO_SHARD"))), _fsdp2("body.1")
    )


def _flow(*, ignore: bool, sharded: bool) -> CaseSpec:
    """Save and load of a transformer with shared parameters.

    The document's docstring speaks of ``rank0_only``, which its code never asks for; the
    full form is taken both ways.
    """
    ignored = _TRANSFORMER if ignore else ()
    form = StateDict(form="sharded" if sharded else "full")
    return CaseSpec(
        world_size=2,
        model=Transformer(rows=23, width=16, heads=8, hidden=8, dropout=0.1),
        inputs=Tokens(batch=2, length=6),
        plan=Fsdp1Plan(
            units=(Fsdp1Unit(path="", ignored=ignored),),
            wrap="module_classes",
            classes=("encoder_stack_layer", "decoder_stack_layer"),
        ),
        optimizer=None,
        program=(form,) if sharded else (form, StateDict(rank0_only=True)),
        twins=(
            Variant(
                name="fsdp2",
                plan=Fsdp2Plan(units=(Fsdp2Unit(path="", ignored=ignored),))
                if ignore
                else _fsdp2(*_LAYERS, ""),
            ),
        ),
    )


def _fsdp2(*paths: str) -> Fsdp2Plan:
    return Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in paths))


STATE_DICT: tuple[Seed, ...] = (
    Seed(
        document="001",
        test="test_state_dict_save_load_root_fully_shard",
        params="",
        case=_root(),
    ),
    Seed(
        document="001",
        test="test_state_dict_save_load_submodule_fully_shard",
        params="",
        case=_submodules(),
    ),
    *(
        Seed(
            document="001",
            test="test_state_dict_save_load_flow",
            params=f"ignore_modules={ignore},sharded_state_dict={sharded}",
            case=_flow(ignore=ignore, sharded=sharded),
        )
        for ignore in (False, True)
        for sharded in (False, True)
    ),
    Seed(
        document="001",
        test="test_full_state_dict_save_load_mixed_sharding",
        params="",
        case=_mixed(),
    ),
)
"""The seven parametrisations, in the order of the document."""
