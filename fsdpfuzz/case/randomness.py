"""What is seeded before a forward: which modules it calls, with which rows, and what is random."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fsdpfuzz.case.recipe import Do, Statement, Sum, Value, call
from fsdpfuzz.case.tensor_parallel import batch_of

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.recipe import Index


# Before each forward: FSDP, DDP and the float64 replica run one after the other in one process.
def seeded(a: Anatomy, index: int | Index) -> Iterator[Statement]:
    """Seeds the generator for the forward of that number, where anything hangs on it."""
    hands_out_rows = any(p.node is not None and p.node.hands_out_rows for p in a.places)
    if not (a.numbered or a.draws_random or hands_out_rows):
        return
    seed: Value = index if a.numbered else Sum(a.case.seed, index)
    if hands_out_rows:
        seed = call("steps.randomness.on_rank", seed, batch_of(a.case))
    yield Do(call=call("torch.manual_seed", seed))
