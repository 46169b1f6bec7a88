"""What modules of somebody's own model return, as far as known defects hang on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Given,
    anatomy,
    case_features,
    unit_features,
)
from tests.unit.ranks.targets import HEAD, structure

pytestmark = pytest.mark.usefixtures("forgotten_targets")


def told_of(folder: Path, text: str) -> str:
    """The feature of a model that is one unit, which the unit tells of as well."""
    case = CaseSpec(
        world_size=2,
        model=structure(folder, HEAD + text),
        inputs=Given(),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(Forward(), Backward()),
        loss="own",
    )
    outputs = case_features(anatomy(case))["outputs"]
    returns = unit_features(anatomy(case), "")["returns"]
    assert returns == ("tensor" if outputs == "no" else outputs)
    return outputs


@pytest.mark.parametrize(
    ("returned", "known", "outputs"),
    [
        ("Held(y)", "", "dataclass"),
        ("Held([y])", "", "dataclass"),
        ("{'y': [Held(y)]}", "", "dataclass"),
        ("Held(y)", "register_dataclass(Held)", "no"),
        ("(y,)", "", "no"),
        ("{'y': y, 'about': Held(1)}", "", "no"),
    ],
)
def test_tensors_in_a_dataclass_are_a_feature_as_of_drawn_models(
    returned: str, known: str, outputs: str, tmp_path: Path
) -> None:
    """FSDP2 overlooks them on releases with `fsdp2-dataclass-output`."""
    text = f"""
from dataclasses import dataclass
from torch.utils._pytree import register_dataclass
@dataclass
class Held:
    y: object
{known}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 2)
    def forward(self, x):
        y = self.first(x)
        return {returned}
def model(): return Net()
def loss(model, batch):
    made = model(batch)
    while not isinstance(made, torch.Tensor):
        each = vars(made) if isinstance(made, Held) else made
        made = next(iter(each.values() if isinstance(each, dict) else each))
    return made.mean()
"""
    assert told_of(tmp_path, text) == outputs


@pytest.mark.parametrize(
    ("base", "returned", "outputs"),
    [
        ("dict", "Held(y=y)", "dataclass"),
        ("dict", "(Held(y=[y]),)", "dataclass"),
        ("list", "Held([y])", "dataclass"),
        ("tuple", "Held((y,))", "dataclass"),
        ("dict", "Held(y=1), y", "no"),
        ("dict", "dict(y=y)", "no"),
    ],
)
def test_so_are_those_in_a_subclass_of_what_pytree_knows(
    base: str, returned: str, outputs: str, tmp_path: Path
) -> None:
    """A pytree goes by the class itself: what is derived from ``dict`` is a leaf to it."""
    text = f"""
class Held({base}): pass
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 2)
    def forward(self, x):
        y = self.first(x)
        self.kept = y
        return {returned}
def model(): return Net()
def loss(model, batch):
    model(batch)
    return model.kept.mean()
"""
    assert told_of(tmp_path, text) == outputs
