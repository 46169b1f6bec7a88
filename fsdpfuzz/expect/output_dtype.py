"""What a forward puts out."""

from __future__ import annotations

from fsdpfuzz.case import Anatomy, Dtype
from fsdpfuzz.case.units.precision import cast_outputs


# ``FSDPState._post_forward`` in torch/distributed/fsdp/_fully_shard/_fsdp_state.py casts them.
def output_dtype(a: Anatomy, op: int) -> Dtype | None:
    """The dtype of what the forward with the index ``op`` puts out, where its unit (fsdp2) is
    told one by ``MixedPrecisionPolicy(output_dtype=...)``; None where nothing is promised.
    """
    now, called = a.at(op), a.case.program[op].called
    if called not in now.options or len(now.modules_of(called)) > 1 or a.imported is not None:
        return None
    return cast_outputs(now.options[called])
