"""Activation checkpointing and activation offload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fsdpfuzz.case.base import ModulePath, Part, on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler, one
from fsdpfuzz.case.keyword_input import named
from fsdpfuzz.case.modules import BY_KEYWORDS, SEVERAL, Repeat
from fsdpfuzz.case.modules.attention import parted
from fsdpfuzz.case.modules.in_place import changed_views
from fsdpfuzz.case.modules.side_output import keeping
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.forward import cut_gradients, most_pending
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import MODEL, Do, Global, Inside, Value, Variable, call
from fsdpfuzz.case.sides import side_of
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

CheckpointKind = Literal["wrapper", "function", "composable", "offload", "function_offload"]

_WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
_COMPOSABLE = "torch.distributed._composable.checkpoint_activation.checkpoint"
OFFLOADS: tuple[CheckpointKind, ...] = ("offload", "function_offload")
"""What keeps activations on the CPU."""
WORDS: dict[CheckpointKind, str] = {
    "wrapper": "checkpoint_wrapper",
    "function": "torch.utils.checkpoint",
    "composable": "composable checkpoint",
    "offload": "activation offload",
    "function_offload": "checkpoint under save_on_cpu",
}
_SHORT: dict[CheckpointKind, str] = {
    "wrapper": "checkpoint_wrapper",
    "function": "checkpoint",
    "composable": "composable checkpoint",
    "offload": "offload_wrapper",
    "function_offload": "checkpoint, save_on_cpu",
}


class Checkpoint(Part, frozen=True, kw_only=True):
    """Activation checkpointing at one module.

    ``wrapper``: ``checkpoint_wrapper``; ``offload``: ``offload_wrapper`` (activations to
    the CPU, nothing recomputed); ``composable``: the hook-based ``checkpoint``;
    ``function``: the caller calls the module through ``torch.utils.checkpoint``;
    ``function_offload``: the same under ``save_on_cpu``.
    """

    path: ModulePath
    kind: CheckpointKind = "wrapper"
    reentrant: bool = False
    side: Literal["inside", "around"] = "inside"
    """Where the module is also a unit: FSDP(checkpoint(m)) or checkpoint(FSDP(m))."""

    @property
    def offloads(self) -> bool:
        """Whether activations go to the CPU."""
        return self.kind in OFFLOADS

    @property
    def recomputes(self) -> bool:
        """Whether activations are computed again, and not only kept elsewhere."""
        return self.kind != "offload"

    @property
    def wraps(self) -> bool:
        """Whether its module lies in another one then, whose name goes into FQNs."""
        return self.kind in ("wrapper", "offload")

    # ``torch.utils.checkpoint`` calls a function, so its recomputation holds whatever that holds:
    # with the unit's own hooks it lies around the unit, and then nobody but the caller can place
    # it.
    def by_caller(self, a: Anatomy) -> bool:
        """Whether the module's caller has to look for it, not the module itself."""
        if self.kind == "function":
            return side_of(a, self) != "inside"
        return self.kind == "function_offload"

    def placed(self, a: Anatomy, *, offloads: bool = True) -> Do:
        """The statement that places it on ``model``; without ``offloads`` nothing leaves."""
        target = Inside("model", self.path) if self.path else MODEL
        into: tuple[Variable | Inside, ...] = (target,)
        match self.kind:
            case "wrapper":
                options: dict[str, Value] = {}
                if self.reentrant:
                    options["checkpoint_impl"] = Global(f"{_WRAPPER}.CheckpointImpl.REENTRANT")
                return Do(call=call(f"{_WRAPPER}.checkpoint_wrapper", target, **options), into=into)
            case "offload":
                return Do(call=call(f"{_WRAPPER}.offload_wrapper", target), into=into)
            case "composable":
                return Do(call=call(_COMPOSABLE, target))
            case "function" if not self.by_caller(a):
                return Do(call=call("steps.checkpointing.recompute", target, self.reentrant))
            case _:
                offload = offloads and self.kind == "function_offload"
                asked = call("steps.checkpointing.ask", target, self.reentrant, offload)
                return Do(call=asked)

    def words(self, side: str = "within") -> str:
        """Which checkpointing, reentrant or not, and on which side of a unit: see `side_of`."""
        text = _SHORT[self.kind]
        if self.reentrant:
            text += " reentrant"
        return text if side == "within" else f"{text} {side} the unit"


def names_are_prefixed(a: Anatomy) -> bool:
    """Whether wrappers put parts into the names of parameters."""
    wrapped = a.imported is not None and a.imported.wrapped
    return a.fsdp1 or wrapped or any(c.wraps for c in a.case.checkpoints)


def recomputed(a: Anatomy) -> list[str]:
    """FQNs of the modules whose activations are recomputed."""
    return [c.path for c in a.case.checkpoints if c.recomputes]


def recomputed_running(a: Anatomy) -> list[str]:
    """Running statistics, as those of batch norms, in what is recomputed."""
    paths = recomputed(a)
    return sorted(name for name in a.running_buffers if any(within(name, path) for path in paths))


def evaluates(a: Anatomy) -> bool:
    """Whether the model runs in eval mode."""
    return any(op.runs_model and not now.training for _, op, now in a.situations(0))


def recomputed_around(a: Anatomy, path: str) -> list[Checkpoint]:
    """Those whose recomputation calls the unit at ``path`` once more, with its hooks."""
    return [
        c
        for c in a.case.checkpoints
        if c.recomputes and within(path, c.path) and (c.path != path or side_of(a, c) == "around")
    ]


# Reentrant checkpointing runs a backward of its own inside the backward. What FSDP does at the end
# of one (``_root_post_backward_final_callback`` of fsdp2, queued with autograd's engine) then comes
# before the outer one is through: these are the ways in which that can show.
def reentrant_scopes(a: Anatomy) -> dict[str, str]:
    """For each reentrant checkpoint, by path, how it lies to units and others; also somebody's own.

    ``repeated``: what it recomputes is called several times before a backward; ``nested``: it
    lies in, or holds, another reentrant checkpoint; ``part``: it recomputes some of what one
    unit manages, not all; ``whole``: none of these.
    """
    own = () if a.imported is None else a.imported.reentrant
    paths = [*(c.path for c in a.case.checkpoints if c.reentrant), *own]
    repeats = [
        place.path for place in a.places if isinstance(place.node, Repeat) and place.node.times > 1
    ]
    scopes = {}
    for path in paths:
        if most_pending(a.case) > 1 or any(
            within(path, repeat) and path != repeat for repeat in repeats
        ):
            scopes[path] = "repeated"
        elif any(other != path and (within(path, other) or within(other, path)) for other in paths):
            scopes[path] = "nested"
        elif any(_is_cut(a, path, owner) for owner in a.units):
            scopes[path] = "part"
        else:
            scopes[path] = "whole"
    return scopes


def reference_recomputes(a: Anatomy) -> bool:
    """Whether the plain model has to recompute, too, to come to the same result.

    A buffer that forward updates counts recomputations, and reentrant checkpointing gives no
    gradient unless an input requires one. Elsewhere it does not, so that what checkpointing does
    wrong by itself shows.
    """
    return bool(cut_gradients(a, plain=True)) or bool(a.changed_buffers)


def _offloaded(a: Anatomy, unit: str) -> str:
    """Where what any of a unit's modules saves, or all that have parameters, is offloaded."""
    owned = [p.fqn for p in a.owned.get(unit, ())]
    offloads = [
        c.path
        for c in a.case.checkpoints
        if c.kind in OFFLOADS
        and (
            any(within(module, c.path) for module in a.modules_of(unit))
            # What is around it may save nothing.
            or (owned and all(within(fqn, c.path) for fqn in owned))
        )
    ]
    around = [c.path for c in a.case.checkpoints if c.recomputes and not c.reentrant]
    if any(path != other and within(path, other) for path in offloads for other in around):
        return "recomputed"
    return "alone" if offloads else "no"


def _is_cut(a: Anatomy, path: str, owner: str) -> bool:
    """Whether ``owner`` manages parameters, or a list of modules, in ``path`` and outside of it."""
    inside = {within(fqn, path) for fqn, unit in a.owners.items() if unit == owner}
    return len(inside) == 2 or len({within(module, path) for module in a.modules_of(owner)}) == 2


_SCOPES = ("repeated", "nested", "part", "whole")


class CheckpointsDimension(Dimension):
    """Where activations are recomputed or offloaded, and by which of PyTorch's ways."""

    name = "checkpoints"
    features: ClassVar[Mapping[str, Feature]] = {
        "checkpoint": Feature(
            about="none, KIND-SIDE or KIND-reentrant-SIDE, several (different ones); SIDE is "
            "inside, around, or within for a module that is no unit",
            group="Training",
            values=("none", "several"),
            open=True,
            excludes={
                "none": {
                    "recomputed_unit": ("on",),
                    "reentrant": ("whole", "part", "nested", "repeated"),
                },
            },
        ),
        "recomputed_unit": Feature(
            about="on when a unit lies in, or at, a recomputed module",
            group="Training",
            values=ON,
        ),
        "wrapper": Feature(
            about="on when a module lies in a wrapper, which puts a prefix into its FQN",
            group="Training",
            values=ON,
            excludes={"on": {"checkpoint": ("none",)}},
        ),
        "reentrant": Feature(
            about="no, whole, part (of what a unit manages), nested, repeated (called again)",
            group="Training",
            values=("no", "whole", "part", "nested", "repeated"),
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "recomputed": Feature(
            about="no, inside (its module's own forward), around (the unit with its hooks), "
            "part (of its modules)",
            group="Training",
            values=("no", "inside", "around", "part"),
        ),
        "offloaded": Feature(
            about="no, alone, recomputed (in a region that another checkpoint recomputes, not "
            "reentrant): where the activations that the unit saves are offloaded, or those of all "
            "its modules that have parameters",
            group="Training",
            values=("no", "alone", "recomputed"),
        ),
        "reentrant": Feature(
            about="the reentrant checkpoint that recomputes some of what the unit manages, or "
            "the unit: no, whole, part, nested, repeated",
            group="Training",
            values=("no", "whole", "part", "nested", "repeated"),
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Kinds and sides, and what they lie on."""
        texts = []
        for checkpoint in a.case.checkpoints:
            reentrant = "-reentrant" if checkpoint.reentrant else ""
            texts.append(f"{checkpoint.kind}{reentrant}-{side_of(a, checkpoint)}")
        yield "checkpoint", one(texts, none="none", several="several")
        paths = recomputed(a)
        inside = any(within(module, path) for module in a.unit_at for path in paths)
        yield "recomputed_unit", on(inside)
        yield "reentrant", _worst(reentrant_scopes(a).values())
        yield "wrapper", on(any(c.wraps for c in a.case.checkpoints))

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """What of the unit is recomputed."""
        sides = {"around"} if recomputed_around(a, path) else set()
        for at in recomputed(a):
            if at == path:
                sides.add("inside")
            elif any(within(name, at) for name in (*a.modules_of(path), *a.names_in(path))):
                sides.add("part")
        # Around comes first: the recomputation then runs the unit's hooks once more, in its
        # backward.
        yield "recomputed", next((s for s in ("around", "inside", "part") if s in sides), "no")
        yield "offloaded", _offloaded(a, path)
        scopes = reentrant_scopes(a)
        touched = [
            scope
            for at, scope in scopes.items()
            if any(within(name, at) for name in (*a.modules_of(path), *a.names_in(path)))
        ]
        yield "reentrant", _worst(touched)

    def check(self, a: Anatomy) -> None:
        """Each is at a module of the model, one at each."""
        check_checkpoints(a, a.case.checkpoints, "$.checkpoints")
        if (name := next(iter(recomputed_running(a)), None)) is not None and evaluates(a):
            # Of a model of somebody's own it is not known which are read.
            text = f"eval mode reads {name!r}, which a recomputation may have changed or not"
            raise CaseError(text, path="$.checkpoints")
        # torch/utils/checkpoint.py:check_backward_validity warns of it, and goes on without
        # gradients.
        cut = cut_gradients(a, plain=True)
        for _, op, path in sorted(cut - cut_gradients(a, plain=False)) if cut else ():
            # Where a frozen parameter shares a flat one, its view requires grad.
            raise CaseError(
                f"at program[{op}] the reentrant one at {path!r} leaves out gradients without "
                "FSDP, as no input requires grad, but not under FullyShardedDataParallel",
                path="$.checkpoints",
            )

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None, one less, not reentrant, on the other side of its unit, the plainest kind."""
        checkpoints, replace = case.checkpoints, msgspec.structs.replace
        if not checkpoints:
            return

        def having(changed: Sequence[Checkpoint]) -> CaseSpec:
            return replace(case, checkpoints=tuple(changed))

        kinds = sorted({c.kind for c in checkpoints})
        yield Simpler(having(()), " and ".join(WORDS[kind] for kind in kinds))
        if any(c.reentrant for c in checkpoints):
            calm = [replace(c, reentrant=False) for c in checkpoints]
            yield Simpler(having(calm), "reentrant checkpointing")
        if any(c.side == "around" for c in checkpoints):
            moved = [replace(c, side="inside") for c in checkpoints]
            yield Simpler(having(moved), "the checkpoint around the unit")
        for i in range(len(checkpoints)) if len(checkpoints) > 1 else ():
            yield Simpler(having(checkpoints[:i] + checkpoints[i + 1 :]))
        for i, checkpoint in enumerate(checkpoints):
            if checkpoint.kind != "wrapper":
                plain = replace(checkpoint, kind="wrapper")
                words = WORDS[checkpoint.kind] if len(checkpoints) == 1 else ""
                yield Simpler(having([*checkpoints[:i], plain, *checkpoints[i + 1 :]]), words)


def check_checkpoints(a: Anatomy, checkpoints: Sequence[Checkpoint], at: str) -> None:
    """Raises :class:`CaseError` for a placement that contradicts itself."""
    check_names([checkpoint.path for checkpoint in checkpoints], a.by_path, at, "module")
    for i in parted(a, checkpoints):
        text = "torch recomputes attention in a checkpoint or an offload with other arguments"
        raise CaseError(f"{text}: put it on the module around", path=f"{at}[{i}]")
    for i, checkpoint in enumerate(checkpoints):
        if checkpoint.reentrant and checkpoint.kind in ("offload", "composable"):
            raise CaseError(f"kind={checkpoint.kind!r} has no reentrant form", path=f"{at}[{i}]")
        # _composable/checkpoint_activation.py makes the contexts of a recomputation in forward.
        if checkpoint.kind == "composable" and any(op.goes_back_again for op in a.case.program):
            text = "a composable checkpoint recomputes once, and a backward goes back twice"
            raise CaseError(text, path=f"{at}[{i}].kind")
        if checkpoint.path in a.kept_out and checkpoint.wraps and checkpoint.side == "inside":
            text = "fsdp1 gives a batch norm a unit inside of its wrapper: side 'around'"
            raise CaseError(text, path=f"{at}[{i}].side")
        if checkpoint.reentrant and a.by_path[checkpoint.path].kind == SEVERAL:
            # torch.utils.checkpoint says so: it looks for tensors in no nested structure.
            text = "reentrant recomputation gives gradients to no tensors in a dict"
            raise CaseError(text, path=f"{at}[{i}]")
        # It is a custom Function, whose output may be no view if it is to be changed in place.
        if checkpoint.reentrant and checkpoint.path in changed_views(a):
            text = "autograd changes no view in place that reentrant recomputation puts out"
            raise CaseError(text, path=f"{at}[{i}]")
        # Its first forward records nothing, and what its second one keeps comes too late.
        if checkpoint.reentrant and any(within(path, checkpoint.path) for path in keeping(a)):
            text = "reentrant recomputation gives no gradients of what a module keeps for the loss"
            raise CaseError(text, path=f"{at}[{i}]")
        if a.imported is not None and checkpoint.by_caller(a):
            text = "an imported model calls its modules itself: use a wrapper"
            raise CaseError(text, path=f"{at}[{i}].kind")
        # torch/utils/checkpoint.py:checkpoint raises for keyword arguments if ``use_reentrant``.
        if lacks_keywords(a, checkpoint):
            text = "torch.utils.checkpoint passes no keyword arguments on if it is reentrant"
            raise CaseError(text, path=f"{at}[{i}]")


# ``CheckpointWrapper.forward`` packs keywords into positional arguments (``_pack_kwargs``).
def lacks_keywords(a: Anatomy, checkpoint: Checkpoint) -> bool:
    """Whether a reentrant function is to recompute what is called by keywords.

    A wrapper packs keyword arguments.
    """
    called = a.by_path[checkpoint.path].kind in BY_KEYWORDS or named(a, checkpoint.path)
    return called and checkpoint.reentrant and not checkpoint.wraps


def _worst(scopes: Iterable[str]) -> str:
    found = set(scopes)
    return next((scope for scope in _SCOPES if scope in found), "no")
