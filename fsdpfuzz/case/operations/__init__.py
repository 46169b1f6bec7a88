"""The operations of a training program: a file each.

To add one, write its file, name it in `Op`, and write what it calls in ``steps``.
"""

from __future__ import annotations

from typing import get_args

from fsdpfuzz.case.operations.apply import Apply
from fsdpfuzz.case.operations.average_unmanaged import AverageUnmanaged
from fsdpfuzz.case.operations.backward import Backward
from fsdpfuzz.case.operations.base import OperationBase, Progress, complete
from fsdpfuzz.case.operations.clear_grad import ClearGrad
from fsdpfuzz.case.operations.clip import Clip
from fsdpfuzz.case.operations.convert import Convert
from fsdpfuzz.case.operations.flip import Flip
from fsdpfuzz.case.operations.forward import Forward
from fsdpfuzz.case.operations.full_params import FullParams
from fsdpfuzz.case.operations.interrupt import Interrupt
from fsdpfuzz.case.operations.learning_rate import LearningRate
from fsdpfuzz.case.operations.mode import Mode
from fsdpfuzz.case.operations.optim_state import OptimState
from fsdpfuzz.case.operations.overflow import Overflow
from fsdpfuzz.case.operations.rebuild import Rebuild
from fsdpfuzz.case.operations.recover import Recover
from fsdpfuzz.case.operations.requires_grad import RequiresGrad
from fsdpfuzz.case.operations.rescale import Rescale
from fsdpfuzz.case.operations.reshard import Reshard
from fsdpfuzz.case.operations.set_reshard import SetReshard
from fsdpfuzz.case.operations.state_dict import StateDict
from fsdpfuzz.case.operations.step import Step
from fsdpfuzz.case.operations.transfer import Transfer
from fsdpfuzz.case.operations.unscale import Unscale
from fsdpfuzz.case.operations.unshard import Unshard
from fsdpfuzz.case.operations.update_scale import UpdateScale
from fsdpfuzz.case.operations.zero_grad import ZeroGrad

Op = (
    Forward
    | Backward
    | Step
    | ZeroGrad
    | Mode
    | RequiresGrad
    | Flip
    | StateDict
    | Rebuild
    | ClearGrad
    | AverageUnmanaged
    | Clip
    | FullParams
    | OptimState
    | Reshard
    | Unshard
    | Rescale
    | Interrupt
    | Apply
    | Transfer
    | LearningRate
    | Recover
    | Unscale
    | UpdateScale
    | Overflow
    | SetReshard
    | Convert
)

OPERATIONS: dict[str, type[OperationBase]] = {kind.kind(): kind for kind in get_args(Op)}
"""All operations, by name."""

complete(OPERATIONS.values())

__all__ = [
    "OPERATIONS",
    "Apply",
    "AverageUnmanaged",
    "Backward",
    "ClearGrad",
    "Clip",
    "Convert",
    "Flip",
    "Forward",
    "FullParams",
    "Interrupt",
    "LearningRate",
    "Mode",
    "Op",
    "OperationBase",
    "OptimState",
    "Overflow",
    "Progress",
    "Rebuild",
    "Recover",
    "RequiresGrad",
    "Rescale",
    "Reshard",
    "SetReshard",
    "StateDict",
    "Step",
    "Transfer",
    "Unscale",
    "Unshard",
    "UpdateScale",
    "ZeroGrad",
]
