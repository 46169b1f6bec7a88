"""Self-attention is drawn with all masks, as a unit and recomputed with its hooks, and shrinks."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, anatomy, is_sound
from fsdpfuzz.case.checkpoints import recomputed_around
from fsdpfuzz.case.modules import MULTIHEAD, Attention
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything


def nodes(case: CaseSpec) -> list[Attention]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, Attention)]


def units(case: CaseSpec) -> list[str]:
    a = anatomy(case)
    return [path for path in a.units if a.by_path[path].kind == MULTIHEAD]


def test_it_is_drawn_in_every_form_and_as_units() -> None:
    told = Counter[tuple[object, ...]]()
    for case in everything():
        for node in nodes(case):
            told["mask", case.api, node.mask] += 1
            told["weights", node.weights] += 1
            told["batch_first", node.batch_first] += 1
        assert not nodes(case) or is_sound(case)
        a = anatomy(case)
        for path in units(case):
            told["unit", case.api] += 1
            around = recomputed_around(a, path)
            told["around", case.api] += any(not c.reentrant for c in around)
            told["reentrant",] += any(c.reentrant for c in a.case.checkpoints if c.path == path)
    forms = [count for (what, *_), count in told.items() if what not in ("around", "reentrant")]
    assert len(forms) == 12
    assert min(forms) >= 10, told
    assert min(told["around", api] for api in ("fsdp1", "fsdp2")) >= 3, told


def test_it_shrinks_to_one_head_without_anything() -> None:
    def simple(case: CaseSpec) -> bool:
        return nodes(case) == [Attention(bias=False)] and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), units)
    assert nodes(minimal(cases())) == []
