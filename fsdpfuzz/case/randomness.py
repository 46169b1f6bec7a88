"""What is seeded before a forward: which modules it calls, with which rows, and what is random."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from fsdpfuzz.case.recipe import Do, Statement, Sum, Value, call
from fsdpfuzz.case.tensor_parallel import batch_of

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.recipe import Index


# Kernels of a GPU hand out one stream of random numbers to threads that take as many elements as
# fit into 16 bytes: other masks come of one seed in another dtype (``fused_dropout_kernel_vec`` in
# aten/src/ATen/native/cuda/Dropout.cu). On a CPU they do not.
def right_in(a: Anatomy, backend: str) -> Literal["float64", "float32"]:
    """The dtype in which the plain model says what is right on the devices of that backend.

    float32 where in float64 the model is another one. What rounding explains is then seen by
    nudging the parameters.
    """
    if a.imported is not None:
        return "float64" if a.imported.in_float64 else "float32"
    return "float32" if a.draws_random and backend == "nccl" else "float64"


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
