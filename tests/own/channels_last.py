"""A net whose parameters do not lie in memory as they are indexed."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Convolutions in channels_last, as image models are trained, and a projection by columns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Parameter(torch.randn(3, 4).t())

    def forward(self, x: Tensor) -> Tensor:
        """Features of the image, averaged and projected."""
        features = self.second(torch.relu(self.norm(self.first(x))))
        projected: Tensor = features.mean((2, 3)) @ self.out
        return projected


def model() -> nn.Module:
    """With seeded values."""
    torch.manual_seed(2)
    made = Net()
    for convolution in (made.first, made.second):
        data = convolution.weight.data
        convolution.weight.data = data.contiguous(memory_format=torch.channels_last)
    return made


def batch(step: int, rank: int) -> Tensor:
    """Images."""
    return torch.randn(3, 2, 5, 5)
