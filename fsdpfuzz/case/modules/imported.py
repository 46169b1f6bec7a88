"""A model of your own: a function in your file makes it, and a case knows its structure.

A case holds no code. It names the target and says which modules and parameters were found there;
ranks build it only where the target was named on the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from fsdpfuzz.case.base import Dtype, ModulePath, Name, ParameterName, Part
from fsdpfuzz.case.modules.base import Brought, Build, NodeBase, Shape
from fsdpfuzz.case.modules.encoder_layer import ATTENTION
from fsdpfuzz.case.modules.walk import Called, Visit, Walk
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import Value, call

OWN = "imported"
"""First part of the dotted name of a function of the target."""
MAX_CALLS = 4096
"""Calls of modules in one forward that a case lists."""

Target = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_.]+$")]
Dim = Annotated[int, Meta(ge=0, le=2**40)]
Size = Annotated[int, Meta(ge=1, le=8)]
LossKind = Literal["function", "attribute", "all"]
FUNCTIONS = (
    "model",
    "batch",
    "loss",
    "freeze",
    "shard",
    "optimizer",
    "clip",
    "load",
    "program",
)
"""What a target can define."""
Function = Annotated[
    str, Meta(max_length=128, pattern=rf"^([A-Za-z_][A-Za-z0-9_]*\.)?({'|'.join(FUNCTIONS)})$")
]
"""A function of a target by its name there: ``model``, or ``llama.model`` of a class."""


class ImportedParameter(Part, frozen=True, kw_only=True):
    """A parameter: ``name`` within its module, ``tied`` the first FQN of the same parameter."""

    name: Name
    shape: Annotated[tuple[Dim, ...], Meta(max_length=16)]
    used: bool = True
    """Whether a backward gives it a gradient."""
    frozen: bool = False
    """Whether your own code freezes it."""
    tied: ParameterName = ""
    """Empty under its first name."""
    order: Annotated[tuple[Annotated[int, Meta(ge=0, lt=16)], ...], Meta(max_length=16)] = ()
    """Its dimensions from the outermost in memory to the innermost; empty if it is contiguous."""


class ImportedModule(Part, frozen=True, kw_only=True):
    """A module of the model. ``alone`` says that it may be a unit, or be recomputed.

    That is so where it is called, puts out what requires grad, and what lies in it is used during
    its calls only: FSDP gathers the parameters of a unit for its forward.
    """

    path: ModulePath
    repeats: bool = True
    """Whether a recomputation comes to the same: it does not where a call leaves traces, as in a
    cache of keys and values."""
    cls: Annotated[str, Meta(max_length=128)] = ""
    """Name of its class."""
    alone: bool = False
    parameters: Annotated[tuple[ImportedParameter, ...], Meta(max_length=4096)] = ()
    buffers: Annotated[tuple[Name, ...], Meta(max_length=4096)] = ()
    changed: Annotated[tuple[Name, ...], Meta(max_length=4096)] = ()
    """Those of its buffers that a forward changes."""
    dtype_asked: bool = False
    """Whether code outside of its calls asks for the dtype of a parameter in it. In a unit that is
    the one in which it is sharded, whatever the unit computes in."""
    base: Literal["", "ModuleList", "ModuleDict", "MultiheadAttention"] = ""
    """That of these classes of ``torch.nn`` of which it is a subclass: a policy by size asks."""
    returns_dataclass: bool = False
    """Whether tensors come out in a dataclass that ``torch.utils._pytree`` does not know, or in a
    subclass of ``dict``, ``list`` or ``tuple`` that it does not."""
    again: Annotated[tuple[ModulePath, ...], Meta(max_length=512)] = ()
    """Its other names: the model holds it several times."""

    def fqns(self, *, used: bool) -> tuple[str, ...]:
        """Of its own parameters those that a backward gives a gradient, or those that it does not.

        Under their first names.
        """
        return tuple(
            f"{self.path}.{p.name}".lstrip(".")
            for p in self.parameters
            if p.used == used and not p.tied
        )


class Imported(NodeBase, tag=OWN, frozen=True, kw_only=True):
    """What ``model()`` of a target makes: its modules as ``named_modules`` gives them.

    It can only be the whole model, and what it computes is unknown: of FSDP's collectives, of
    their order, and of when units are resharded nothing is promised.
    """

    classes: ClassVar[tuple[str, ...]] = ()
    scratch: ClassVar[int] = ATTENTION
    target: Target
    """``mymodel.py``, or ``package.module``; where it lies, the command line says."""
    functions: Annotated[tuple[Function, ...], Meta(max_length=len(FUNCTIONS))] = ()
    """Those that it defines, but for what is named as in `FUNCTIONS` and needed anyhow."""
    modules: Annotated[tuple[ImportedModule, ...], Meta(min_length=1, max_length=512)]
    calls: Annotated[tuple[ModulePath, ...], Meta(max_length=MAX_CALLS)] = ()
    """The modules that a forward calls, in order, without the model itself."""
    loss: LossKind = "all"
    """``loss(model, batch)`` of the target, ``.loss`` of what the model returns, or all that it
    returns."""
    computes_in: tuple[Dtype, ...] = ()
    """The dtypes below float32 in which it runs."""
    in_float64: bool = True
    """Whether it computes the same in float64; else what is right is float32's."""
    complex_buffers: bool = False
    """Whether it has complex buffers, of which ``.to(dtype)`` would leave the real part."""
    computes_beside: tuple[Dtype, ...] = ()
    """Of these the ones in which it runs while its buffers stay in float32."""
    layers: tuple[Annotated[str, Meta(max_length=128)], ...] = ()
    """The classes of its layers, where it names them: ``_no_split_modules`` of transformers."""
    random: bool = False
    """Whether a forward in train mode draws random numbers."""
    wrapped: bool = False
    """Whether ``shard(model, mesh)`` of the target wraps it; the plan says what that made."""
    mesh: tuple[Size, Size] | None = None
    """Replicas, and ranks that each is sharded over, where it is wrapped over such a mesh."""
    optimizes: bool = False
    """Whether that gives an optimizer, too, beside the model."""
    leaves_frozen: Annotated[tuple[ParameterName, ...], Meta(max_length=4096)] | None = None
    """What is frozen after it, whatever was before; None where it leaves that as it is."""
    stateful: bool = False
    """Whether ``optimizer(parameters)`` of the target keeps state."""
    several_states: bool = False
    """Whether that is several tensors for each parameter, as Adam keeps them."""
    counts_steps: bool = False
    """Whether it counts the steps of each parameter."""
    decays_state: bool = False
    """Whether decaying weights go into its state, as into the momentum of SGD."""
    skips_frozen: bool = False
    """Whether that optimizer is given no parameter that is frozen when it is made."""
    recomputes: Annotated[tuple[ModulePath, ...], Meta(max_length=512)] = ()
    """What its own forward has reentrant checkpointing recompute: the outermost modules of each."""
    shard_recomputes: Annotated[tuple[ModulePath, ...], Meta(max_length=512)] = ()
    """The same of what ``shard(model, mesh)`` does besides."""
    loads: bool = False
    """Whether ``load(model, state)`` of the target is called once the model is wrapped."""
    loses: bool = False
    """Whether a forward changes a buffer that a state dict does not hold, or not of each rank."""

    @property
    def module_name(self) -> str:
        """The name under which Python imports the target."""
        return self.target.removesuffix(".py")

    def function(self, name: str) -> str:
        """The dotted name of a function of the target."""
        here = (own for own in self.functions if own.rpartition(".")[2] == name)
        return f"{OWN}.{self.module_name}.{next(here, name)}"

    def has(self, name: str) -> bool:
        """Whether the target defines a function of that name."""
        return any(own.rpartition(".")[2] == name for own in self.functions)

    @property
    def recomputable(self) -> frozenset[str]:
        """The modules that may be recomputed, by their FQN."""
        return frozenset(m.path for m in self.modules if m.alone and m.repeats)

    @property
    def reentrant(self) -> tuple[str, ...]:
        """All modules that reentrant checkpoints of its own code recompute."""
        return (*self.recomputes, *self.shard_recomputes) if self.wrapped else self.recomputes

    @property
    def before_reentrant(self) -> tuple[str, ...]:
        """FQNs of the parameters that are used before anything is recomputed by a reentrant one.

        ``torch.utils.checkpoint`` computes no gradients where no input requires grad, so they have
        to be trained. Those of the model itself may be used anywhere, and count.
        """
        if not self.reentrant:
            return ()
        first = next((i for i, path in enumerate(self.calls) if path in self.reentrant), 0)
        called = ("", *self.calls[:first])
        return tuple(
            f"{module.path}.{p.name}".lstrip(".")
            for module in self.modules
            for p in module.parameters
            if module.path in called
        )

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped by its own code, which knows of its own wrapping only."""
        return self.wrapped and self.has("clip")

    @property
    def part(self) -> str:
        """The class of the target that holds the functions, or some of them; empty for none."""
        found = (own.rpartition(".")[0] for own in self.functions)
        return next((name for name in found if name), "")

    @property
    def own_frozen(self) -> tuple[str, ...]:
        """FQNs of the parameters that your own code freezes."""
        if self.leaves_frozen is not None:
            return self.leaves_frozen
        return tuple(
            f"{module.path}.{p.name}".lstrip(".")
            for module in self.modules
            for p in module.parameters
            if p.frozen and not p.tied
        )

    @property
    def ties(self) -> tuple[tuple[str, str], ...]:
        """The parameters with several names: the first, and each other one."""
        return tuple(
            (p.tied, f"{module.path}.{p.name}".lstrip("."))
            for module in self.modules
            for p in module.parameters
            if p.tied
        )

    def own_ties(self) -> Iterator[tuple[str, str]]:
        """By each other name of a module its parameters have one more."""
        for module in self.modules:
            for p in module.parameters:
                for path in module.again:
                    yield f"{module.path}.{p.name}", f"{path}.{p.name}"

    @property
    def root(self) -> ImportedModule:
        """The model itself."""
        return self.modules[0]

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Nobody asks how wide it is."""
        return width

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The calls as they were seen; which of them have inputs that require grad is unknown."""
        for inner in self.calls:
            yield Called(inner, grad, x, asked=False)
        return grad

    def module(self, width: int, build: Build) -> Value:
        """It stands in no other."""
        return self.made()

    def made(self) -> Value:
        """Your own function; what it freezes the case says."""
        made = call(self.function("model"))
        # All trained to begin with: a smaller case may freeze less than the target's own code does.
        return call(".requires_grad_", made, True) if self.own_frozen else made

    def inside(self, width: int, at: str) -> Iterator[Brought]:
        """All modules by their FQN."""
        for module in self.modules[1:]:
            yield Brought(
                module.path,
                module.cls,
                width,
                width,
                parameters=tuple((p.name, p.shape) for p in module.parameters),
                unused=frozenset(p.name for p in module.parameters if not p.used),
                buffers=module.buffers,
                alone=module.alone,
                callable_alone=False,
                base=module.base,
            )

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """Those of the model itself."""
        for p in self.root.parameters:
            yield p.name, p.shape

    def unused_parameters(self) -> frozenset[str]:
        """Of these the ones without a gradient."""
        return frozenset(p.name for p in self.root.parameters if not p.used)

    def own_buffers(self) -> tuple[str, ...]:
        """Those of the model itself."""
        return self.root.buffers

    def changed_buffers(self) -> tuple[str, ...]:
        """Of all modules, by their FQN."""
        return tuple(
            f"{module.path}.{name}".lstrip(".")
            for module in self.modules
            for name in module.changed
        )

    def lower_dtypes(self, *, with_buffers: bool) -> tuple[Dtype, ...]:
        """In which of them its parameters may be, and its buffers or not."""
        return self.computes_in if with_buffers else self.computes_beside

    def loses_state(self) -> bool:
        """As it was seen."""
        return self.loses

    def draws_random(self) -> bool:
        """As it was seen."""
        return self.random

    def words(self) -> list[str]:
        """The target, and the class."""
        return [f"{self.target}{':' if self.part else ''}{self.part}: {self.root.cls}"]


# Ranks that call different units issue different collectives (pytorch issue 158719).
def called_alike(counts: Sequence[Mapping[str, int]], paths: Iterable[str]) -> frozenset[str]:
    """The modules that every forward calls equally often.

    Where one depends on the data, so may those beside it: experts, of which some got no token.
    What lies in such a module depends on it, too.
    """
    every = list(paths)
    odd = {p for p in every if len({count.get(p, 0) for count in counts}) > 1}
    holders = {p.rpartition(".")[0] for p in odd if p}
    return frozenset(
        p for p in every if not any(p != holder and within(p, holder) for holder in holders)
    )


def depends_on_data(name: str, where: str) -> str:
    """That a parameter gets a gradient in some forwards only, in words for its owner."""
    return (
        f"whether {name!r} gets a gradient depends on the data: it is not the same at {where} as "
        "before. With FSDP all ranks have to use the same parameters: one that lacks a gradient "
        "on some rank is averaged wrongly there, or ranks wait for each other for ever. Call every "
        "branch on every rank (an expert without tokens on an empty batch)"
    )
