"""What the reference did, kept for the comparison: tensors by operation and FQN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fsdpfuzz.ranks._program import Pass
from fsdpfuzz.spec import Backward, CaseSpec, Op, StateDict, Step

Values = Mapping[str, Tensor | None]


@dataclass(slots=True)
class Trace:
    """Losses and outputs by forward index; gradients and parameters by operation."""

    losses: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    input_grads: dict[int, Tensor | None] = field(default_factory=dict)
    grads: dict[int, Values] = field(default_factory=dict)
    params: dict[int, Values] = field(default_factory=dict)
    states: dict[int, Values] = field(default_factory=dict)
    """Buffers at each state dict; its parameters are in ``params``."""
    buffers: dict[str, Tensor] = field(default_factory=dict)


class Recorder:
    """A watcher that fills a trace."""

    def __init__(self, case: CaseSpec, trainee: Whole) -> None:
        self.trace = Trace()
        self._case = case
        self._trainee = trainee

    def before(self, op: int, request: Op) -> None:
        """Nothing to do."""

    def after_forward(self, done: Pass) -> None:
        """Keeps loss and output."""
        self.trace.losses.append(done.loss.detach())
        self.trace.outputs.append(done.output.detach())

    def after(self, op: int, request: Op, finished: list[Pass]) -> None:
        """Keeps gradients after a synchronised backward, parameters after a step."""
        if isinstance(request, Backward):
            for item in finished:
                self.trace.input_grads[item.index] = item.inputs.grad
            if finished[0].op in synchronised_forwards(self._case):
                self.trace.grads[op] = {
                    name: None if grad is None else grad.clone()
                    for name, grad in self._trainee.grads().items()
                }
        elif isinstance(request, Step):
            self.trace.params[op] = {
                name: value.clone() for name, value in self._trainee.values().items()
            }
        elif isinstance(request, StateDict):
            self.trace.params[op] = {
                name: value.clone() for name, value in self._trainee.values().items()
            }
            self.trace.states[op] = {
                name: value.detach().clone() for name, value in self._trainee.buffers().items()
            }


class Whole(Protocol):
    """What can show whole gradients and parameters."""

    def grads(self) -> Values:
        """Synchronised gradients by FQN."""

    def values(self) -> dict[str, Tensor]:
        """Parameters by FQN."""

    def buffers(self) -> dict[str, Tensor]:
        """Buffers by FQN."""


def synchronised_forwards(case: CaseSpec) -> frozenset[int]:
    """Operations that are forwards whose backward reduces gradients."""
    return frozenset(i for i, op in enumerate(case.program) if getattr(op, "sync", False) is True)
