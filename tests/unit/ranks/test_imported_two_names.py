"""Models of somebody's own that hold a module under several names, as T5 does its embedding."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Given,
    Imported,
    StateDict,
    Tie,
    anatomy,
    case_features,
    unit_features,
)
from fsdpfuzz.case.building import build_of
from fsdpfuzz.case.recipe import Call, Do, Inside
from fsdpfuzz.expect.state_dict import state_keys
from tests.unit.ranks.targets import HEAD, structure

pytestmark = pytest.mark.usefixtures("forgotten_targets")

T5 = (
    HEAD
    + """
class Stack(nn.Module):
    def __init__(self, embed):
        super().__init__()
        self.embed = embed
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(self.embed(x))
class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        self.encoder, self.decoder = Stack(self.shared), Stack(self.shared)
        self.head = nn.Linear(4, 2)
    def forward(self, x):
        return self.head(self.encoder(x) + self.decoder(x))
def model(): return T5()
"""
)


@pytest.fixture
def made(tmp_path: Path) -> Imported:
    return structure(tmp_path, T5)


def case_of(made: Imported) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=made,
        inputs=Given(),
        plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),)),
        ties=tuple(Tie(source=source, target=target) for source, target in made.ties),
        program=(StateDict(form="local"),),
    )


def test_the_names_of_a_module_and_of_what_lies_in_it(made: Imported) -> None:
    again = {m.path: m.again for m in made.modules if m.again}
    assert again == {
        "shared": ("encoder.embed", "decoder.embed"),
        "shared.0": ("encoder.embed.0", "decoder.embed.0"),
        "shared.1": ("encoder.embed.1", "decoder.embed.1"),
    }
    a = anatomy(case_of(made))
    assert a.brought_ties == {
        f"{stack}.embed.0.{name}": f"shared.0.{name}"
        for stack in ("encoder", "decoder")
        for name in ("weight", "bias")
    }
    assert case_features(a)["two_names"] == "on"


def test_no_unit_is_made_of_it_nor_of_what_holds_it_once(made: Imported) -> None:
    """FSDP1 puts its wrapper in the place of one name, and the first to be wrapped takes it."""
    assert {m.path for m in made.modules if m.alone} == {
        "",
        "encoder.layer",
        "decoder.layer",
        "head",
    }


def test_what_holds_all_of_its_names_may_be_a_unit(tmp_path: Path) -> None:
    text = T5 + "def model(): return nn.Sequential(T5(), nn.Linear(2, 2))"
    assert "0" in {m.path for m in structure(tmp_path, text).modules if m.alone}


def test_what_holds_it_once_is_not_frozen_at_once(made: Imported) -> None:
    """``encoder.requires_grad_(False)`` would freeze the shared layer, too."""
    layer = ("encoder.layer.weight", "encoder.layer.bias")
    given = msgspec.structs.replace(case_of(made), frozen=layer)
    assert frozen_by(given) == ["encoder.layer"]
    shared = tuple(f"shared.0.{name}" for name in ("weight", "bias"))
    given = msgspec.structs.replace(given, frozen=(*shared, *layer))
    assert frozen_by(given) == ["shared", "encoder.layer"]


def frozen_by(case: CaseSpec) -> list[str]:
    """The modules whose parameters are frozen at once."""
    calls = (item.call for item in build_of(anatomy(case)).body if isinstance(item, Do))
    asked = (c.args for c in calls if isinstance(c, Call) and c.function == ".requires_grad_")
    return [at.path for at, *rest in asked if isinstance(at, Inside) and rest]


def test_a_unit_of_it_is_one_of_all_its_names(made: Imported) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="shared")))
    a = anatomy(msgspec.structs.replace(case_of(made), plan=plan, program=(StateDict(),)))
    assert a.split_ties == ()
    assert unit_features(a, "shared")["tied"] == "within unit"


def test_a_local_state_dict_has_none_of_its_names(made: Imported) -> None:
    case = case_of(made)
    a = anatomy(case)
    (op,) = case.program
    assert isinstance(op, StateDict)
    plain = {*a.owners, *a.brought_ties}
    assert state_keys(a, plain, op, absent=False) == {"_flat_param"}


def test_a_container_with_a_forward_is_no_unit(tmp_path: Path) -> None:
    """Before torch 2.12 ``fully_shard`` refuses each ``ModuleList``, as that of a weight norm."""
    text = "def model(): return nn.Sequential({}, nn.Linear(4, 2))"
    norm = "nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))"
    alone = {m.path for m in structure(tmp_path, HEAD + text.format(norm)).modules if m.alone}
    assert {"0", "0.parametrizations.weight.0", "1"} <= alone
    assert "0.parametrizations.weight" not in alone
