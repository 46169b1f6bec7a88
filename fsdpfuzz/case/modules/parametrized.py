"""A linear layer whose weight is computed from other parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from fsdpfuzz.case.base import Width
from fsdpfuzz.case.modules.base import Build, Leaf, Shape, changed, takes_features, without_defaults
from fsdpfuzz.case.recipe import Call, Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node

_MADE = "torch.nn.utils.parametrizations"
_HELD = "parametrizations.weight.original"


class Parametrized(Leaf, tag="parametrized", frozen=True, kw_only=True):
    """``nn.Linear`` under one of ``torch.nn.utils.parametrizations``.

    Its weight is a property of the module, and no parameter: ``weight_norm`` makes it of lengths
    and directions, by rows or (``weight_norm_dim1``) by columns; ``orthogonal`` of one matrix.
    """

    # What is parametrized is of a subclass of its own class, which policies take for that one.
    place_kind: ClassVar[str] = "linear"
    shows_width: ClassVar[bool] = True
    out: Width
    bias: bool = True
    form: Literal["weight_norm", "weight_norm_dim1", "orthogonal"] = "weight_norm"

    @property
    def made(self) -> str:
        """The parametrization, whatever it goes by."""
        return "orthogonal" if self.form == "orthogonal" else "weight_norm"

    def width_after(self, width: int, at: str = "$.model") -> int:
        """``out``."""
        takes_features(self, width, at)
        # Of one element the direction is its sign, and a rotation is the identity.
        match self.form:
            case "weight_norm":
                turned = width
            case "weight_norm_dim1":
                turned = self.out
            case "orthogonal":
                turned = max(width, self.out)
        if turned == 1:
            raise CaseError(f"{self.form} of single elements has no gradient", path=at)
        return self.out

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """A bias if asked for, then what the weight is made of."""
        if self.bias:
            yield "bias", (self.out,)
        whole = (self.out, width)
        if self.form == "orthogonal":
            yield _HELD, whole
        else:
            yield f"{_HELD}0", (self.out, 1) if self.form == "weight_norm" else (1, width)
            yield f"{_HELD}1", whole

    def takes(self) -> str:
        """As ``nn.Linear`` calls it."""
        return "input"

    def module(self, width: int, build: Build) -> Value:
        """PyTorch's own."""
        linear = call("torch.nn.Linear", width, self.out, **without_defaults(self, bias="bias"))
        return self._parametrized(linear)

    def _parametrized(self, linear: Value) -> Call:
        match self.form:
            case "weight_norm":
                return call(f"{_MADE}.weight_norm", linear)
            case "weight_norm_dim1":
                return call(f"{_MADE}.weight_norm", linear, dim=1)
            case "orthogonal":
                # The other maps, and the trivialisation, need factorisations that no CPU has in
                # low precision.
                options: dict[str, Value] = {
                    "orthogonal_map": "matrix_exp",
                    "use_trivialization": False,
                }
                return call(f"{_MADE}.orthogonal", linear, **options)

    def words(self) -> list[str]:
        """``weight_norm``."""
        return [self.form]

    def simpler(self) -> Iterator[Node]:
        """By ``weight_norm``; without the bias."""
        if self.form != "weight_norm":
            yield changed(self, form="weight_norm")
        if self.bias:
            yield changed(self, bias=False)
