"""The units of a plan by size are those that torch's own policy makes, in every kind of model."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from torch import nn
from torch.distributed.fsdp.wrap import _recursive_wrap, size_based_auto_wrap_policy

from fsdpfuzz.case import (
    CaseSpec,
    Dense,
    Embedding,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Node,
    Sequential,
    Tie,
    Tokens,
    Transformer,
    anatomy,
)
from fsdpfuzz.case.modules import CLASSES
from fsdpfuzz.case.modules.keyed import Keyed
from fsdpfuzz.case.modules.outputs import Outputs
from fsdpfuzz.case.policies import _Sizes, sizes
from fsdpfuzz.ranks._execute import resolve
from tests.unit.ranks.executed import built
from tests.unit.ranks.test_build import MODELS

TOKENS = ("transformer", "tied")
ALL: dict[str, Node] = {
    **MODELS,
    "keyed": Keyed(body=Linear(out=4)),
    "outputs": Outputs(body=Linear(out=4), form="dict"),
    "transformer": Transformer(rows=11, width=4),
    "tied": Sequential(
        children=(Embedding(rows=6, out=4), Sequential(children=(Linear(out=6), Linear(out=4))))
    ),
}


class Unit(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


def case_of(name: str, plan: Fsdp1Plan) -> CaseSpec:
    tie = Tie(source="0.weight", target="1.0.weight")
    return CaseSpec(
        world_size=2,
        model=ALL[name],
        inputs=Tokens() if name in TOKENS else Dense(width=4, length=3),
        plan=plan,
        program=(Forward(),),
        ties=(tie,) if name == "tied" else (),
    )


def by_torch(case: CaseSpec, plan: Fsdp1Plan) -> list[str]:
    model = built(replace(case, plan=Fsdp1Plan(units=plan.units)))
    root = plan.units[0]
    ignored = {inner for path in root.ignored for inner in model.get_submodule(path).modules()}
    parameters = dict(model.named_parameters())
    passed = {p for module in ignored for p in module.parameters()}
    passed |= {parameters[name] for name in root.ignored_parameters}
    told: dict[str, Any] = {"min_num_params": plan.min_num_params}
    if plan.leaves:
        told["force_leaf_modules"] = classes(plan.leaves)
    if plan.excluded:
        told["exclude_wrap_modules"] = {nn.ModuleList, nn.ModuleDict, *classes(plan.excluded)}

    def wrapper(module: nn.Module, **_: Any) -> nn.Module:
        return Unit(module)

    policy = partial(size_based_auto_wrap_policy, **told)
    _recursive_wrap(model, policy, wrapper, ignored, passed, only_wrap_children=True)
    made = [name for name, module in model.named_modules() if isinstance(module, Unit)]
    # Around a unit's own name, whatever modules of ours are called.
    return sorted(".".join(p for p in parts(model, name)) for name in made)


def parts(model: nn.Module, name: str) -> list[str]:
    found, at = [], model
    for part in name.split("."):
        if not isinstance(at, Unit):
            found.append(part)
        at = at.get_submodule(part)
    return found


def classes(kinds: tuple[str, ...]) -> set[type[nn.Module]]:
    return {resolve(name) for kind in kinds for name in CLASSES[kind]}


def by_size(least: int, **fields: Any) -> Fsdp1Plan:
    values: dict[str, Any] = {"units": (Fsdp1Unit(path=""),)}
    return Fsdp1Plan(**values | fields, wrap="size_policy", min_num_params=least)


@pytest.mark.parametrize("name", ALL)
def test_whatever_is_large_enough(name: str) -> None:
    a = anatomy(case_of(name, by_size(1)))
    hidden = {kind for place in a.places if place.node for kind in place.node.inner_kinds}
    kinds = sorted({p.kind for p in a.places if p.path and p.kind in CLASSES} - hidden)
    found = set()
    for least in sorted(
        {size + more for size in sizes(a.places, a.case.ties).values() for more in (0, 1)} - {0}
    ):
        for leaves, excluded in (
            ((), ()),
            *(((kind,), ()) for kind in kinds),
            *(((), (kind,)) for kind in kinds),
        ):
            plan = by_size(least, leaves=leaves, excluded=excluded)
            expected = sorted(_Sizes(plan, a.places, a.case.ties).units)
            assert by_torch(a.case, plan) == expected, plan
            found.add(tuple(expected))
    assert len(found) > 1 or len(a.places) == 1


@pytest.mark.parametrize("told", [{"ignored": ("1",)}, {"ignored_parameters": ("0.bias",)}])
def test_what_is_ignored_does_not_count(told: dict[str, tuple[str, ...]]) -> None:
    for least in range(1, 40):
        plan = by_size(least, units=(Fsdp1Unit(path="", **told),))  # type: ignore[arg-type]
        a = anatomy(case_of("norms", plan))
        assert by_torch(a.case, plan) == sorted(_Sizes(plan, a.places, ()).units)
