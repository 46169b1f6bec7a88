"""Which forwards a backward ends, and what came of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fsdpfuzz.case import Forward, Op
from fsdpfuzz.ranks._execute import Variables


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and what came of it."""

    op: int
    index: int
    x: Tensor | None
    """The inputs; None where they are no single tensor."""
    output: Tensor
    loss: Tensor
    synchronised: bool

    @property
    def input_grad(self) -> Tensor | None:
        """The gradient of the inputs, if they have one."""
        return None if self.x is None else self.x.grad


@dataclass(slots=True)
class Passes:
    """Follows a program operation by operation."""

    program: Sequence[Op]
    count: int = 0
    """Forwards so far."""
    _pending: list[Pass] = field(default_factory=list)

    def after(self, op: int, variables: Variables) -> list[Pass]:
        """Notes a forward; the passes that a backward has ended."""
        request = self.program[op]
        if isinstance(request, Forward):
            if request.waits:
                x = variables["x"]
                self._pending.append(
                    Pass(
                        op,
                        self.count,
                        # The inputs themselves: their gradient is there only once a backward has
                        # run.
                        x if isinstance(x, Tensor) else None,
                        variables["output"],
                        variables["loss"],
                        request.sync,
                    )
                )
            # Also one that gives no loss: the reference numbers its outputs by all forwards.
            self.count += 1
        elif request.gives_gradients:
            finished, self._pending = self._pending, []
            return finished
        return []
