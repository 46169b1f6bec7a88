"""What kinds of module and parameter a model has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler, one
from fsdpfuzz.case.modules import (
    BATCH_NORM,
    MULTIHEAD,
    SEVERAL,
    Attention,
    Branches,
    EncoderLayer,
    ExtraState,
    InPlace,
    Keyed,
    Norm,
    Outputs,
    Parametrized,
    Repeat,
    SideOutput,
)
from fsdpfuzz.case.tensor_parallel import local
from fsdpfuzz.case.tree import MAX_NODES
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

_OTHER_KINDS = frozenset(
    {"dropout", "switch", "positions", "encoder_layer", "transformer", "outputs"}
)


# ``_chunk_with_empty`` in fsdp/_fully_shard/_fsdp_common.py: five rows over four ranks are 2, 2, 1
# and 0, not 2, 1, 1 and 1.
def leaves_out_a_rank(rows: int, ranks: int) -> bool:
    """Whether ``torch.chunk``, by which FSDP cuts, gives some rank no row."""
    each = max(1, -(-rows // ranks))
    return -(-rows // each) < ranks


class StructureDimension(Dimension):
    """Modules, buffers, and shapes of parameters."""

    name = "structure"
    of_model: ClassVar[bool] = True
    features: ClassVar[Mapping[str, Feature]] = {
        "reused": Feature(
            about="no, grad (called several times), no_grad (also without gradient)",
            group="Parameters",
            values=("no", "grad", "no_grad"),
        ),
        "unused": Feature(about="on when a parameter is never used", group="Parameters", values=ON),
        "one_element": Feature(
            about="on when a parameter has a single element",
            group="Parameters",
            values=ON,
            # Holds from two ranks on.
            excludes={"on": {"empty_shard": ("off",), "uneven": ("off",)}},
        ),
        "scalar": Feature(
            about="on when a parameter has no dimension", group="Parameters", values=ON
        ),
        "empty_shard": Feature(
            about="on when a rank gets no row (dim 0) of a parameter: 2, 2, 1 and 0 of five",
            group="Sharding",
            values=ON,
            excludes={"on": {"uneven": ("off",)}},
        ),
        "uneven": Feature(
            about="on when dim 0 of a parameter is not a multiple of the world size",
            group="Sharding",
            values=ON,
        ),
        "buffers": Feature(
            about="no, persistent, non-persistent, updating, running (statistics of a batch norm)",
            group="Parameters",
            values=("no", "persistent", "non-persistent", "updating", "running"),
        ),
        "merge": Feature(
            about="no, concat, sum, stack, several",
            group="Model",
            values=("no", "concat", "sum", "stack", "several"),
        ),
        "side_input": Feature(
            about="on when branches get an unused second input",
            group="Model",
            values=ON,
            excludes={"on": {"merge": ("no",)}},
        ),
        "norm": Feature(
            about="no, layer, rms, batch, several",
            group="Model",
            values=("no", "layer", "rms", "batch", "several"),
            excludes={
                "batch": {
                    "buffers": ("no", "persistent", "non-persistent", "updating"),
                    # Behind a convolution, which wants another dimension last.
                    "handed_view": ("off",),
                },
                **{one: {"buffers": ("running",)} for one in ("no", "layer", "rms")},
            },
        ),
        "embedding": Feature(about="on when the model embeds tokens", group="Model", values=ON),
        "lora": Feature(about="on when there is an adapter", group="Model", values=ON),
        "residual": Feature(
            about="on when there is a residual connection", group="Model", values=ON
        ),
        "own_parameter": Feature(
            about="on when a container has a parameter of its own", group="Parameters", values=ON
        ),
        "outputs": Feature(
            about="no, tuple, dict, dataclass, several: what holds a module's two tensors",
            group="Model",
            values=("no", "tuple", "dict", "dataclass", "several"),
        ),
        "keywords": Feature(
            about="no, input, added, several: what a module is given by keyword",
            group="Model",
            values=("no", "input", "added", "several"),
        ),
        "in_place": Feature(
            about="no, output, view (at least one is): what a module puts out and another one "
            "changes in place",
            group="Model",
            values=("no", "output", "view"),
        ),
        "parametrized": Feature(
            about="no, weight_norm, orthogonal (at least one is): by what weights are computed "
            "from other parameters",
            group="Parameters",
            values=("no", "weight_norm", "orthogonal"),
        ),
        "layer_drop": Feature(
            about="on when layers are left out in turn, another one by each forward",
            group="Model",
            values=ON,
        ),
        "experts": Feature(
            about="on when rows of the data are handed to experts, other numbers on each rank",
            group="Model",
            values=ON,
        ),
        "attention": Feature(
            about="no, full, masked (any is): attention of PyTorch's that is given one tensor "
            "three times",
            group="Model",
            values=("no", "full", "masked"),
        ),
        "kv_reuse": Feature(
            about="on when several layers attend to the keys and values of one module",
            group="Model",
            values=ON,
        ),
        "side_output": Feature(
            about="no, plain, input, output (any is): what a module keeps for the loss beside its "
            "output, of that itself or of a linear layer on its input or its output",
            group="Model",
            values=("no", "plain", "input", "output"),
        ),
        "extra_state": Feature(
            about="no, tensor, dict (any is): what a module has in the state dict that is neither "
            "a parameter nor a buffer",
            group="Model",
            values=("no", "tensor", "dict"),
        ),
        "two_names": Feature(
            about="on when a module is held under two names, and called by either",
            group="Model",
            # In few models: no pair is waited for.
            values=("off",),
            open=True,
        ),
        "kinds": Feature(
            about="the other kinds of module, joined by +: dropout, switch, positions, ...",
            group="Model",
            open=True,
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "attends": Feature(
            about="on when the unit's module is nn.MultiheadAttention that is given one tensor "
            "three times",
            group="Model",
            values=ON,
        ),
        "returns": Feature(
            about="tensor, tuple, dict, dataclass: what the unit's module returns; of modules in "
            "one group the first that returns more than a tensor",
            group="Model",
            values=("tensor", "tuple", "dict", "dataclass"),
        ),
    }
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "used": Feature(
            about="off when no forward ever reads the parameter", group="Parameters", values=ON
        ),
        "rows": Feature(
            about="even, uneven, few (a rank gets none), none (no dimension): dim 0 of the "
            "parameter over the ranks",
            group="Parameters",
            values=("even", "uneven", "few", "none"),
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """What occurs."""
        yield from self._parameters(a)
        nodes = [place.node for place in a.places if place.node is not None]
        repeats = [node for node in nodes if isinstance(node, Repeat)]
        own = a.imported
        again = own is not None and len(set(own.calls)) < len(own.calls)
        grad = "grad" if again or any(node.times > 1 for node in repeats) else "no"
        yield "reused", "no_grad" if any(node.no_grad != "off" for node in repeats) else grad
        yield "buffers", _buffers(a)
        branches = [node for node in nodes if isinstance(node, Branches)]
        yield "merge", one((node.merge for node in branches), several="several")
        yield "side_input", on(any(node.side for node in branches))
        norms: list[str] = [node.variant for node in nodes if isinstance(node, Norm)]
        norms += ["batch"] * (BATCH_NORM in a.kinds)
        yield "norm", one(norms, several="several")
        forms = [node.form for node in nodes if isinstance(node, Outputs)]
        if own is not None and any(module.returns_dataclass for module in own.modules):
            forms.append("dataclass")
        yield "outputs", one(forms, several="several")
        keyed = ("added" if n.added else "input" for n in nodes if isinstance(n, Keyed))
        yield "keywords", one(keyed, several="several")
        put_out = ("view" if n.view else "output" for n in nodes if isinstance(n, InPlace))
        yield "in_place", one(put_out, several="view")
        made = (node.made for node in nodes if isinstance(node, Parametrized))
        yield "parametrized", one(made, several="orthogonal")
        yield "layer_drop", on("layer_drop" in a.kinds)
        yield "experts", on("experts" in a.kinds)
        masked = [n.mask != "none" for n in nodes if isinstance(n, Attention)]
        masked += [n.causal for n in nodes if isinstance(n, EncoderLayer)]
        yield "attention", ("masked" if any(masked) else "full") if masked else "no"
        yield "kv_reuse", on("kv_reuse" in a.kinds)
        extra = ("dict" if n.as_dict else "tensor" for n in nodes if isinstance(n, ExtraState))
        yield "extra_state", one(extra, several="dict")
        kept = ("plain" if n.on == "no" else n.on for n in nodes if isinstance(n, SideOutput))
        yield "side_output", one(kept, several="output")
        held = own is not None and any(module.again for module in own.modules)
        yield "two_names", on("two_names" in a.kinds or held)
        yield "embedding", on("embedding" in a.kinds or "transformer" in a.kinds)
        yield "lora", on("lora" in a.kinds)
        yield "residual", on("residual" in a.kinds)
        yield "own_parameter", on("matrix" in a.kinds)
        yield "kinds", "+".join(sorted(a.kinds & _OTHER_KINDS)) or "no"

    def _parameters(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        rows = [(local(a, p).shape[0], a.shards(a.owners[p.fqn])) for p in a.distinct if p.shape]
        yield "unused", on(any(not p.used for p in a.distinct))
        yield "one_element", on(any(p.numel == 1 and p.shape for p in a.distinct))
        yield "scalar", on(any(not p.shape for p in a.distinct))
        yield "empty_shard", on(any(leaves_out_a_rank(number, ranks) for number, ranks in rows))
        yield "uneven", on(any(number % ranks for number, ranks in rows))

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Whether it attends, and what it returns."""
        modules = a.modules_of(path)
        yield "attends", on(any(a.by_path[m].kind == MULTIHEAD for m in modules))
        forms = (_returned(a, module) for module in modules)
        yield "returns", next((form for form in forms if form != "tensor"), "tensor")

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Whether it is used, and how its rows fall on the ranks."""
        parameter, ranks = a.by_fqn[fqn], a.shards(a.owners[fqn])
        yield "used", on(parameter.used)
        if not parameter.shape:
            yield "rows", "none"
        elif leaves_out_a_rank(local(a, parameter).shape[0], ranks):
            yield "rows", "few"
        else:
            yield "rows", "uneven" if local(a, parameter).shape[0] % ranks else "even"

    def check(self, a: Anatomy) -> None:
        """Bounds on the model's size."""
        # For the error that it raises where batches do not fit together.
        a.case.model.rows_after()
        if len(a.places) > MAX_NODES:
            raise CaseError(
                f"{len(a.places)} modules; at most {MAX_NODES} are accepted", path="$.model"
            )

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """`fsdpfuzz.reduce` takes models apart."""
        return iter(())


def _returned(a: Anatomy, module: str) -> str:
    if a.imported is not None:
        held = any(m.path == module and m.returns_dataclass for m in a.imported.modules)
        return "dataclass" if held else "tensor"
    if a.by_path[module].kind != SEVERAL:
        return "tensor"
    around = a.by_path[module.rpartition(".")[0]].node
    assert isinstance(around, Outputs)
    return around.form


def _buffers(a: Anatomy) -> str:
    found = {name for place in a.places for name in place.buffers}
    if not found:
        return "no"
    if found & a.running_buffers:
        return "running"
    if found & a.changed_buffers:
        return "updating"
    unsaved = any(place.node is not None and place.node.unsaved_buffers() for place in a.places)
    return "non-persistent" if unsaved else "persistent"
