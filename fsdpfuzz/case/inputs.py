"""What goes into the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from fsdpfuzz.case.base import Batch, Part, Width, on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.modules import TOKENS, Embedding, Transformer
from fsdpfuzz.case.recipe import Call, Global, Index, Items, Variable, call
from fsdpfuzz.case.tensor_parallel import batch_of
from fsdpfuzz.errors import CaseError, ContractError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

Length = Annotated[int, Meta(ge=1, le=4096)]


class Dense(Part, tag="dense", tag_field="kind", frozen=True, kw_only=True):
    """Normal random inputs of shape ``(batch, width)``, or ``(batch, length, width)``."""

    width: Width
    batch: Batch = 2
    length: Length | None = None
    requires_grad: bool = False

    def width_out(self) -> int:
        """Size of the last dimension."""
        return self.width

    def needs_grad(self) -> bool:
        """Whether the inputs require grad."""
        return self.requires_grad

    def shape(self) -> tuple[int, ...]:
        """Of one forward's inputs on a rank."""
        middle = () if self.length is None else (self.length,)
        return (self.batch, *middle, self.width)

    def drawn(self, a: Anatomy, index: Index) -> Call:
        """The inputs of a forward by its number; other ones on each rank."""
        options = {"requires_grad": True} if self.requires_grad else {}
        return call(
            "steps.inputs.dense",
            Items("tuple", self.shape()),
            a.case.seed,
            index,
            batch_of(a.case),
            Variable("device"),
            Variable("dtype"),
            **options,
        )

    def words(self) -> str:
        """Their shape, and whether they require grad."""
        return "×".join(map(str, self.shape())) + (", requires grad" if self.requires_grad else "")


class Tokens(Part, tag="tokens", tag_field="kind", frozen=True, kw_only=True):
    """Random integers of shape ``(batch, length)`` for a model that starts with an embedding."""

    batch: Batch = 2
    length: Length = 3

    def width_out(self) -> int:
        """`TOKENS`: there is none yet."""
        return TOKENS

    def needs_grad(self) -> bool:
        """Integers cannot."""
        return False

    def shape(self) -> tuple[int, ...]:
        """Of one forward's inputs on a rank."""
        return (self.batch, self.length)

    def drawn(self, a: Anatomy, index: Index) -> Call:
        """The inputs of a forward by its number; other ones on each rank."""
        return call(
            "steps.inputs.tokens",
            rows_of(a),
            Items("tuple", self.shape()),
            a.case.seed,
            index,
            batch_of(a.case),
            Variable("device"),
        )

    def words(self) -> str:
        """``tokens 2×3``."""
        return f"tokens {self.batch}×{self.length}"


class Given(Part, tag="given", tag_field="kind", frozen=True, kw_only=True):
    """What ``batch(step, rank)`` of the target of an imported model gives: any pytree of tensors.

    Of its sizes nothing is known, so that none can be smaller.
    """

    batch: ClassVar[int] = 1
    length: ClassVar[int | None] = None
    requires_grad: ClassVar[bool] = False

    def width_out(self) -> int:
        """None that is known."""
        return TOKENS

    def needs_grad(self) -> bool:
        """They are taken as they come."""
        return False

    def drawn(self, a: Anatomy, index: Index) -> Call:
        """The inputs of a forward by its number; other ones on each rank."""
        if a.imported is None:
            raise ContractError("only an imported model has inputs of its own")
        return call(
            "steps.modules.imported.given",
            Global(a.imported.function("batch")),
            a.case.seed,
            index,
            batch_of(a.case),
            Variable("device"),
            Variable("dtype"),
        )

    def words(self) -> str:
        """Whose they are."""
        return "batch(step, rank)"


Inputs = Dense | Tokens | Given


# Beyond the rows of the table an embedding raises on the CPU and asserts on the device on a GPU.
def rows_of(a: Anatomy) -> int:
    """Number of distinct tokens: the rows of the first embedding in the data flow."""
    for place in a.places:
        if isinstance(place.node, Embedding | Transformer):
            return place.node.rows
    raise ContractError("tokens go into a model without an embedding")


class InputsDimension(Dimension):
    """Dense data, sequences or tokens, with and without grad."""

    name = "inputs"
    of_model: ClassVar[bool] = True
    features: ClassVar[Mapping[str, Feature]] = {
        "inputs": Feature(
            about="dense, sequence (dense with a length), tokens",
            group="Training",
            values=("dense", "sequence", "tokens"),
            excludes={
                "dense": {"embedding": ("on",)},
                "sequence": {"embedding": ("on",)},
                "tokens": {"embedding": ("off",), "input_grad": ("on",)},
            },
        ),
        "input_grad": Feature(about="on when the inputs require grad", group="Training", values=ON),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Kind of the inputs, and whether they require grad."""
        inputs = a.case.inputs
        match inputs:
            case Tokens():
                kind = "tokens"
            case Given():
                kind = "given"
            case Dense():
                kind = "dense" if inputs.length is None else "sequence"
        yield "inputs", kind
        yield "input_grad", on(inputs.needs_grad())

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Their shape."""
        yield "inputs", case.inputs.words()

    def check(self, a: Anatomy) -> None:
        """That the model takes them: `Anatomy.places` raises where a width does not fit.

        An imported model brings its own.
        """
        if isinstance(a.case.inputs, Given) != (a.imported is not None):
            raise CaseError("an imported model goes with inputs 'given'", path="$.inputs.kind")
        _ = a.places

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """A batch of one, a short sequence, no grad."""
        inputs = case.inputs
        replace = msgspec.structs.replace
        if isinstance(inputs, Given):
            return
        if isinstance(inputs, Dense):
            if inputs.requires_grad:
                plain = replace(inputs, requires_grad=False)
                yield Simpler(replace(case, inputs=plain), "inputs that require grad")
            if inputs.length is not None:
                yield Simpler(replace(case, inputs=replace(inputs, length=None)))
        if inputs.batch > 1:
            yield Simpler(replace(case, inputs=replace(inputs, batch=1)))
        if inputs.length is not None and inputs.length > 1:
            yield Simpler(replace(case, inputs=replace(inputs, length=1)))
