"""A convolution and its batch norm."""

from __future__ import annotations

from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class ConvNorm(nn.Module):
    """The same features in each channel, convolved along them and normed, and the mean of all."""

    def __init__(self, channels: int, affine: bool = True) -> None:
        super().__init__()
        # Without a bias: the norm takes off any.
        self.conv = nn.Conv1d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm1d(channels, affine=affine)
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        rows = x.reshape(-1, 1, x.shape[-1]).expand(-1, self.channels, -1)
        y = call(self.bn, call(self.conv, rows))
        return y.mean(dim=1).view(x.shape)
