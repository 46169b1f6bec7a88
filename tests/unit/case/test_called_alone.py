"""When a module may be called by itself, of a model that leaves some out."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import Forward, Linear, Op, Sequential, anatomy, calls_by_the_book, check
from fsdpfuzz.case.modules import LayerDrop
from tests.unit.case.test_layer_drop import ONCE, case
from tests.unit.case.test_units import fsdp2


@pytest.mark.parametrize(
    ("before", "by_the_book"),
    [
        # The first forward leaves out the first layer, which is a root.
        ((Forward(grad=False),), False),
        ((Forward(grad=False), Forward(grad=False)), True),
        ((Forward(grad=False), Forward(grad=False, target="layers.0")), True),
    ],
)
def test_a_part_of_a_root_that_was_left_out_is_not_called_first(
    before: tuple[Op, ...], by_the_book: bool
) -> None:
    """As fsdp2 raises: "requires running forward through the root module first"."""
    model = LayerDrop(children=(Sequential(children=(Linear(out=4),)), Linear(out=4)), start=1)
    part = Forward(grad=False, target="layers.0.0")
    given = case(fsdp2("layers.0", "layers.0.0"), (*before, part, *ONCE), model=model)
    check(given)
    assert calls_by_the_book(anatomy(given)) is by_the_book
