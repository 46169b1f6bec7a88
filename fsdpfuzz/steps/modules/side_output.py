"""A module that keeps a part of the loss beside its output."""

from __future__ import annotations

from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class SideOutput(nn.Module):
    """Keeps a mean square beside the body's output: of that, or of what a linear layer gives.

    ``on`` says what the layer takes: the ``output``, or as a router does the ``input``.
    """

    kept: list[Tensor]
    layer: nn.Module

    def __init__(self, body: nn.Module, width: int, on: str = "no") -> None:
        super().__init__()
        self.body = body
        self.on = on
        if on != "no":
            self.layer = nn.Linear(width, 1, bias=False)
        self.kept = []

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        if self.on == "input":
            self.kept.append(call(self.layer, x).square().mean())
        y: Tensor = call(self.body, x)
        if self.on != "input":
            side: Tensor = call(self.layer, y) if self.on == "output" else y
            self.kept.append(side.square().mean())
        return y


# A recomputation keeps one as well, as does a forward that an exception ends.
def forget(model: nn.Module) -> None:
    """Before a forward: what is kept of earlier ones."""
    for part in model.modules():
        if isinstance(part, SideOutput):
            part.kept.clear()


def with_kept(loss: Tensor, model: nn.Module) -> Tensor:
    """The loss with all that the modules have kept of this forward, and keep no longer."""
    for part in model.modules():
        if isinstance(part, SideOutput):
            loss = sum(part.kept, loss)
            part.kept.clear()
    return loss
