"""``nn.MultiheadAttention`` that is given one tensor three times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from fsdpfuzz.case.base import Count
from fsdpfuzz.case.modules.base import (
    Brought,
    Build,
    Child,
    NodeBase,
    changed,
    takes_features,
    without_defaults,
)
from fsdpfuzz.case.modules.encoder_layer import (
    ATTENTION,
    MULTIHEAD,
    PROJECTIONS,
    attention_parameters,
)
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.checkpoints import Checkpoint
    from fsdpfuzz.case.modules import Node


class Attention(NodeBase, tag="attention", frozen=True, kw_only=True):
    """Self-attention as models write it: ``y, _ = inner(x, x, x)``, with an option by keyword.

    ``mask``: ``causal`` lets no query see later keys (``attn_mask``), ``padding`` lets none see
    the second half (``key_padding_mask``). With ``weights`` it also puts out what each query takes
    of each key, which nobody uses; without ``batch_first`` it is given ``x.transpose(0, 1)``.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.attention.Attention",)
    inner_kinds: ClassVar[tuple[str, ...]] = PROJECTIONS
    scratch: ClassVar[int] = ATTENTION
    joins_rows: ClassVar[bool] = True
    attends: ClassVar[bool] = True
    heads: Count = 1
    bias: bool = True
    mask: Literal["none", "causal", "padding"] = "none"
    weights: bool = False
    batch_first: bool = True

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width, which the heads must divide."""
        takes_features(self, width, at)
        if width % self.heads:
            raise CaseError(f"width {width} is not divisible by heads={self.heads}", path=at)
        return width

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """PyTorch's own, which takes and returns several tensors."""
        held = attention_parameters(width)
        shapes = tuple((name, shape) for name, shape in held if self.bias or "bias" not in name)
        yield Brought("inner", MULTIHEAD, width, width, shapes, callable_alone=False, takes="query")

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """PyTorch's own."""
        return (yield from walk.plain(path, ("inner",), x, grad=grad))

    def module(self, width: int, build: Build) -> Value:
        """A module of ours around PyTorch's own."""
        own = without_defaults(self, bias="bias")
        # Ours by default, and not PyTorch's: batches come first here.
        own |= {"batch_first": True} if self.batch_first else {}
        inner = call("torch.nn.MultiheadAttention", width, self.heads, **own)
        options = without_defaults(self, mask="mask", weights="weights")
        return call("steps.modules.attention.Attention", inner, **options)

    def hands_views(self) -> bool:
        """Transposed, where batches come second."""
        return not self.batch_first

    def words(self) -> list[str]:
        """``2 heads``, ``causal``, ``no bias``, ``weights``, ``batch second``."""
        words = [f"{self.heads} head{'s' * (self.heads > 1)}"]
        words += [self.mask] if self.mask != "none" else []
        words += [] if self.bias else ["no bias"]
        words += ["weights"] if self.weights else []
        return words if self.batch_first else [*words, "batch second"]

    def simpler(self) -> Iterator[Node]:
        """Without mask, weights and bias; one head; batches first."""
        if self.mask != "none":
            yield changed(self, mask="none")
        if self.weights:
            yield changed(self, weights=False)
        if not self.batch_first:
            yield changed(self, batch_first=True)
        if self.heads > 1:
            yield changed(self, heads=1)
        if self.bias:
            yield changed(self, bias=False)


# torch/utils/checkpoint.py keeps the arguments by ``save_for_backward`` (``_NoopSaveInputs``), each
# by itself: hooks for saved tensors, as a recomputation and an offload have them, give each back
# apart. PyTorch's attention asks ``query is key``, and a plain model fails as well.
def parted(a: Anatomy, checkpoints: Sequence[Checkpoint]) -> list[int]:
    """Which of the checkpoints recompute attention with three tensors in place of one.

    Not reentrant and on the module itself, within another one or under an offload.
    """
    found = []
    plain = [c for c in checkpoints if not c.reentrant]
    for i, inner in enumerate(checkpoints):
        at_one = a.by_path[inner.path].kind == MULTIHEAD and inner.recomputes
        around = any(c.path != inner.path and within(inner.path, c.path) for c in plain)
        if at_one and not inner.reentrant and (around or inner.offloads):
            found.append(i)
    return found
