"""Tensors that say what is gathered of them: what stays one, and what is sent and joined."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fsdpfuzz.steps.fsdp2.extensions import Extended, Split, Wider, split, wider

KINDS = pytest.mark.parametrize("kind", [Split, Wider])
VALUES = torch.tensor([[0.1, -3e38, 1e-40], [1 / 3, 0.0, 2.0**-149], [7.0, -1e-7, 65537.0]])


@pytest.mark.parametrize("made", [split, wider])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_parameter_stays_one(made: Any, requires_grad: bool) -> None:
    p = made(nn.Parameter(VALUES.clone(), requires_grad))
    assert isinstance(p, nn.Parameter)
    assert isinstance(p, Extended)
    assert p.requires_grad is requires_grad
    assert torch.equal(p.held, VALUES)


@KINDS
def test_what_parameters_are_made_of_is_one_and_results_are_plain(kind: type[Extended]) -> None:
    p = kind(VALUES.clone())
    parts = (p.detach(), p.view(-1), p[:2], p.new_zeros(2), torch.empty_like(p), p.clone())
    assert {type(part) for part in (*parts, *torch.split(p, 1))} == {kind}
    assert {type(made) for made in (p + 1, torch.zeros_like(p), p.sum())} == {Tensor}
    with torch.no_grad():
        p.view(-1)[3:].copy_(torch.ones(6))
    assert torch.equal(p.held[1:], torch.ones(2, 3))


@KINDS
@pytest.mark.parametrize("inference", [False, True])
def test_elsewhere_it_is_one_as_well(kind: type[Extended], inference: bool) -> None:
    with torch.inference_mode(inference):
        assert type(kind(VALUES.clone()).to("meta", non_blocking=True)) is kind


def gathered(kind: type[Extended], ranks: int) -> tuple[list[Tensor], Any, Any]:
    """What all ranks send, put together, with what the first one says of it."""
    size = -(-len(VALUES) // ranks)
    shards = [kind(VALUES[i * size : (i + 1) * size]) for i in range(ranks)]
    mesh: Any = SimpleNamespace(size=lambda: ranks)
    told = [
        shard.fsdp_pre_all_gather(mesh, VALUES.shape, VALUES.stride(), nn.Identity(), None)
        for shard in shards
    ]
    assert {len(part) for sent, _ in told for part in sent} == {size}
    return [torch.cat(parts) for parts in zip(*(sent for sent, _ in told), strict=True)], *(
        told[0][1],
        shards[0],
    )


@KINDS
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_what_is_sent_is_joined_exactly(kind: type[Extended], ranks: int) -> None:
    outputs, metadata, shard = gathered(kind, ranks)
    assert [t.dtype for t in outputs] == (
        [torch.bfloat16, torch.float32] if kind is Split else [torch.float64]
    )
    whole, freed = shard.fsdp_post_all_gather(outputs, metadata, torch.float32)
    assert torch.equal(whole[:3], VALUES)
    assert len(freed) == len(outputs) + 1
    low, _ = shard.fsdp_post_all_gather(outputs, metadata, torch.bfloat16)
    assert torch.equal(low[:3], VALUES.bfloat16())
    out = nn.Parameter(torch.zeros_like(VALUES))
    version = out._version
    assert shard.fsdp_post_all_gather(outputs, metadata, torch.float32, out=out) is None
    assert torch.equal(out, VALUES)
    assert out._version == version
