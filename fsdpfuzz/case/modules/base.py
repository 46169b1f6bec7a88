"""What a kind of module has to say of itself.

A model is a tree of nodes. A node maps the last dimension of its input, its *width*, to a new
one, and says that alone: what comes in follows from the data flow, and no edit contradicts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec

from fsdpfuzz.case.base import Part, default_of
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.recipe import Value
from fsdpfuzz.errors import CaseError, ContractError

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Model, Node

TOKENS = 0
"""Width of the data before an embedding: there is none."""

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the built model. ``used`` is False where no forward ever reads it."""

    fqn: str
    shape: Shape
    used: bool = True

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Place:
    """One module of the built model that a unit or a checkpoint can name.

    ``parameters`` and ``buffers`` are those of the module that lie in no deeper place.
    ``json_path`` says where its node stands in the document; ``node`` is None for a module
    that a node brings along, such as the linear layers of a low-rank adapter.
    """

    path: str
    kind: str
    node: Model | None
    width_in: int
    width_out: int
    depth: int
    json_path: str
    parameters: tuple[Parameter, ...] = ()
    buffers: tuple[str, ...] = ()
    callable_alone: bool = True
    """Whether it can be called by itself: with one tensor, for one."""
    alone: bool = True
    """Whether FSDP supports a unit here, and torch a checkpoint: see `ImportedModule`."""
    returns_its_input: bool = False
    """Whether what it puts out is the very tensor that it was given."""
    by_method: bool = False
    """Whether it is called by another method than ``forward``, which it has not."""
    takes: str = "x"
    """Name of the parameter that its input is passed for."""
    base: str = ""
    """See `ImportedModule`."""


@dataclass(frozen=True, slots=True)
class Child:
    """A module inside a node's own: ``name`` is its FQN there, ``at`` where its node stands."""

    name: str
    node: Node
    width: int
    at: str = ""


@dataclass(frozen=True, slots=True)
class Brought:
    """A module that a node brings along without a node of its own."""

    name: str
    kind: str
    width_in: int
    width_out: int
    parameters: tuple[tuple[str, Shape], ...] = ()
    used: bool = True
    child: Child | None = None
    """The node that lies in it, if there is one."""
    callable_alone: bool = True
    """Whether it takes one tensor, and returns one."""
    unused: frozenset[str] = frozenset()
    """Names of the parameters that no forward reads, where some do."""
    buffers: tuple[str, ...] = ()
    alone: bool = True
    """See `Place`, as for the next ones."""
    returns_its_input: bool = False
    by_method: bool = False
    takes: str = "input"
    """As most of PyTorch's own modules call it."""
    base: str = ""


Build: TypeAlias = Callable[[Child], Value]
"""Gives the expression that makes a child."""


class NodeBase(Part, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all kinds of module. A kind is a file that has this and the steps it names.

    Every kind says what width it puts out, how it is called and what builds it; what else
    there is has a default that holds for a module without parameters and children.
    """

    classes: ClassVar[tuple[str, ...]] = ()
    """Dotted names of the classes that it may become, for ``ModuleWrapPolicy``."""
    place_kind: ClassVar[str] = ""
    """The kind that its place goes by, where policies take it for one of another kind."""
    inner_kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of the modules in it that are no places, so that classes must not name them."""
    shows_width: ClassVar[bool] = False
    """Whether `explain` says the width even of one that keeps it."""
    calls_all: ClassVar[bool] = False
    """Whether a forward calls each of its children, one after the other."""
    chooses_from: ClassVar[str] = ""
    """Name of the list of modules in it of which a forward calls some, and leaves out others."""
    numbered: ClassVar[bool] = False
    """Whether that hangs on the number of the forward, which the random seed then is."""
    hands_out_rows: ClassVar[bool] = False
    """Whether the random seed says which rows each of its children is given, in two dimensions."""
    joins_rows: ClassVar[bool] = False
    """Whether it computes with several rows together, so that it cannot do without any."""
    attends: ClassVar[bool] = False
    """Whether it takes a softmax of products of what it was given."""
    cut_by_rows: ClassVar[int | None] = None
    """The dimension of its weight that ``RowwiseParallel`` cuts; None where it cannot cut it."""
    normalises: ClassVar[bool] = False
    """Whether it is a norm over the last dimension, which ``SequenceParallel`` takes."""
    linears: ClassVar[tuple[str, ...]] = ()
    """FQNs in it, empty for itself, of linear layers that are called as modules with one input."""
    takes_rows: ClassVar[bool] = False
    """Whether it does the same to rows of its input as to all of it, if what lies in it does."""
    changes_outputs: ClassVar[bool] = False
    """Whether it changes in place what a module in it puts out."""
    encodes: ClassVar[bool] = False
    """Whether it has a method ``encode``, which does what its forward does."""
    scratch: ClassVar[int] = 0
    """Bytes on a GPU that its kernels may allocate for themselves while they run."""

    @classmethod
    def kind(cls) -> str:
        """Its name in a case."""
        tag = cls.__struct_config__.tag
        if not isinstance(tag, str):
            raise ContractError(f"{cls.__name__} has no kind")
        return tag

    def width_after(self, width: int, at: str = "$.model") -> int:
        """The width that it puts out for ``width`` in; :class:`CaseError` if it cannot."""
        raise NotImplementedError

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """What it calls in a forward, itself left out, and whether its output requires grad."""
        raise NotImplementedError

    def module(self, width: int, build: Build) -> Value:
        """The expression that makes the module."""
        raise NotImplementedError

    def rows_after(self, at: str = "$.model") -> int:
        """How many times larger the batch comes out; :class:`CaseError` where that cannot be."""
        return 1

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The modules in it, in the order of ``named_modules``."""
        return iter(())

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """Name and shape of each parameter that lies in no place inside it."""
        return iter(())

    def unused_parameters(self) -> frozenset[str]:
        """Names of its own parameters that no forward reads."""
        return frozenset()

    def own_ties(self) -> Iterator[tuple[str, str]]:
        """Parameters with a second name in a module inside it: both names."""
        return iter(())

    def own_buffers(self) -> tuple[str, ...]:
        """Names of its buffers that lie in no place inside it."""
        return ()

    def unsaved_buffers(self) -> tuple[str, ...]:
        """Of its own buffers those that no state dict holds."""
        return ()

    # Recomputation calls the module once more: then the reference has to recompute, too.
    def changed_buffers(self) -> tuple[str, ...]:
        """Of its own buffers those that a forward changes, so that each call counts."""
        return ()

    # How often a recomputation reaches them is not defined, and from then on it would decide on
    # outputs.
    def running_buffers(self) -> tuple[str, ...]:
        """Of those that a forward changes the ones that it reads in eval mode."""
        return ()

    # A model that is made anew in the middle of a program would go on from other values.
    def loses_state(self) -> bool:
        """Whether it changes any that a state dict does not hold as each rank has it."""
        return bool(self.running_buffers())

    # FSDP's hooks for before and after a backward then hang on one tensor; see `identity_units`.
    def returns_its_input(self) -> bool:
        """Whether what it puts out is the very tensor that it was given."""
        return False

    # Its backward may be through before any recomputation is asked for.
    def saves(self) -> bool:
        """Whether autograd keeps a tensor of its forward for the backward."""
        return not self.returns_its_input()

    def may_lack_rows(self, rows: int) -> bool:
        """Whether a module in it may be given none of so many rows."""
        return False

    def returns_no_rows(self) -> bool:
        """Whether it puts out the very tensor that it was given where that has no rows."""
        return self.returns_its_input()

    def last(self) -> tuple[str, Node] | None:
        """Name and node of the child whose output it puts out as it is, if there is one."""
        return None

    def passed_on(self) -> Iterator[str]:
        """FQNs of the modules in it, one of which puts out what it does itself."""
        found = self.last()
        return iter(() if found is None else (found[0],))

    def passes_no_rows(self) -> Iterator[str]:
        """As `passed_on`, where there are no rows."""
        return self.passed_on()

    # A recomputation ends there: it stops once it has the last of what the backward needs.
    def ends_with(self) -> Iterator[str]:
        """FQNs of the modules in it behind which it computes nothing that a backward needs."""
        return self.passed_on()

    # Autograd refuses to go back through what saved its own output, as tanh does, once that is
    # changed in place.
    def changeable(self) -> bool:
        """Whether nothing needs what it puts out, so that another module may change it in place."""
        return False

    def puts_out_view(self, deep: bool) -> bool:
        """Whether it puts out a view of another tensor.

        ``deep`` says that its input has more than two dimensions.
        """
        return False

    def takes(self) -> str:
        """Name of the parameter that its input is passed for: that of our own modules."""
        return "x"

    def named_alone(self) -> str:
        """Name of the module in it that is given its input by keyword alone; empty for none."""
        return ""

    def called_inside(self) -> str:
        """FQN of a module deeper in it than its children that it also calls; empty for none."""
        return ""

    def repeats(self) -> bool:
        """Whether a forward calls what lies in it several times."""
        return False

    def takes_lower_dtypes(self) -> bool:
        """Whether its parameters may have another dtype than its inputs, which it puts out."""
        return False

    # Autograd saves the other factor only if this one has a gradient function, or is a leaf that
    # asks for one; for ``torch.nn.functional.linear``, or a LayerNorm, it saves it in any case.
    def multiplies(self) -> bool:
        """Whether it multiplies by a parameter of its own as tensors are: by ``*`` or ``@``."""
        return False

    def hands_views(self) -> bool:
        """Whether it gives a module of its own a view of what it is given."""
        return False

    def draws_random(self) -> bool:
        """Whether a forward in train mode draws random numbers."""
        return False

    def words(self) -> list[str]:
        """Its options in a few words, without what is at PyTorch's default."""
        return []

    def simpler(self) -> Iterator[Node]:
        """Plainer nodes of the same width that it can be replaced by, the plainest first."""
        return iter(())


class Leaf(NodeBase, frozen=True, kw_only=True):
    """A module without places in it: it may have parameters, and calls nothing else."""

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """Its output requires grad if its input or one of its own parameters does."""
        yield from ()
        return x or (grad and walk.own(path))


class Around(NodeBase, frozen=True, kw_only=True):
    """A module around one body, which keeps the width and the batch."""

    if TYPE_CHECKING:  # a field of each kind, whose file finds `Node` when it is decoded
        body: Node

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        takes_features(self, width, at)
        return kept_width(self.body, width, at=f"{at}.body", says="the body", path=at)

    def rows_after(self, at: str = "$.model") -> int:
        """Keeps the batch."""
        return kept_rows(self.body, at=f"{at}.body", says="the body", path=at)


def kept_width(node: Node, width: int, *, at: str, says: str, path: str) -> int:
    """``width``; :class:`CaseError` at ``path`` where the node at ``at`` puts out another one."""
    out = node.width_after(width, at)
    if out != width:
        raise CaseError(f"{says} must keep the width {width}, but puts out {out}", path=path)
    return out


def kept_rows(node: Node, *, at: str, says: str, path: str) -> int:
    """One; :class:`CaseError` at ``path`` where the node at ``at`` enlarges the batch."""
    if node.rows_after(at) != 1:
        text = f"{says} must keep the batch, but a stack in it enlarges it"
        raise CaseError(text, path=path)
    return 1


def takes_features(node: NodeBase, width: int, at: str) -> int:
    """``width``, for a node that cannot take tokens; :class:`CaseError` where there are any."""
    if width == TOKENS:
        raise CaseError(f"{node.kind()} cannot take tokens; put an embedding first", path=at)
    return width


def without_defaults(node: NodeBase, **fields: str) -> dict[str, Value]:
    """Keyword arguments for the fields that are not at their default: field to argument."""
    found: dict[str, Value] = {}
    for name, argument in fields.items():
        value = getattr(node, name)
        if value != default_of(type(node), name):
            found[argument] = value
    return found


def changed(node: NodeBase, **fields: object) -> Node:
    """The node with other fields."""
    return msgspec.structs.replace(node, **fields)  # type: ignore[return-value]
