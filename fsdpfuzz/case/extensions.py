"""Parameters that are tensor subclasses, and say what fsdp2 gathers of them.

Such a subclass has ``fsdp_pre_all_gather`` and ``fsdp_post_all_gather``. PyTorch calls them
all-gather extensions; tensors that are stored or sent in lower precision have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import msgspec

from fsdpfuzz.case.base import ParameterName, Part, on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler, one
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.recipe import Do, Inside, call
from fsdpfuzz.case.stored_low import gathered_as
from fsdpfuzz.case.strides import transposed
from fsdpfuzz.case.tensor_parallel import ANY_CUT
from fsdpfuzz.case.units.precision import stored_low
from fsdpfuzz.case.units.reshard_after_forward import left_by_forward
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

Sends = Literal["split", "wider"]
WAYS: tuple[Sends, ...] = get_args(Sends)
_SENT: Mapping[Sends, tuple[str, ...]] = {
    "split": ("bfloat16", "float32"),
    "wider": ("float64",),
}
"""The dtypes of what is gathered of a parameter, each time all of its elements."""


class Extension(Part, frozen=True, kw_only=True):
    """What is gathered of one parameter: as much as it has, in another form.

    ``split``: what bfloat16 holds of it, and the rest. ``wider``: it in float64.
    """

    parameter: ParameterName
    sends: Sends = "split"


def extensions(a: Anatomy) -> Mapping[str, Sends]:
    """What is gathered of the parameters that have a say in it."""
    return {e.parameter: e.sends for e in a.case.extensions}


def sent_in(a: Anatomy, owner: str, fqn: str) -> tuple[str, ...]:
    """The dtypes of what a unit gathers of a parameter; of each as many elements as it has."""
    told = extensions(a).get(fqn)
    return (gathered_as(a, owner, fqn),) if told is None else _SENT[told]


def may_be_extended(a: Anatomy) -> tuple[str, ...]:
    """FQNs of the parameters that may: they have a unit under every plan, and one name."""
    if a.imported is not None or a.case.tensor_parallel is not None:
        return ()
    # There they are DTensors already, of plain tensors.
    if a.case.spmd_mesh is not None:
        return ()
    if any(b.fsdp1 for b in a.under_each_plan):
        return ()
    out = {*a.source, *a.source.values(), *stored_low(a), *transposed(a)}
    out.update(a.brought_ties, a.brought_ties.values())
    for b in a.under_each_plan:
        out.update(p.fqn for p in a.parameters if _beyond(b, b.owners[p.fqn]))
    return tuple(p.fqn for p in a.parameters if p.fqn not in out and p.numel and p.shape)


# ``FSDPParam.all_gather_inputs`` raises a bare NotImplementedError for the latter, in backward.
def _beyond(a: Anatomy, unit: str | None) -> bool:
    """Whether a parameter is in no unit, or in one that forwards leave over fewer ranks."""
    return unit is None or left_by_forward(a, unit) == "part"


def extended(a: Anatomy) -> Iterator[Do]:
    """Before any unit is made of them; the plain model has plain parameters."""
    for told in a.case.extensions:
        p = Inside("model", told.parameter)
        yield Do(call=call(f"steps.fsdp2.extensions.{told.sends}", p), into=(p,), who="fsdp")


class ExtensionsDimension(Dimension):
    """Which parameters have a say in what is gathered of them, and what they say."""

    name = "extensions"
    of_model: ClassVar[bool] = True
    features: ClassVar[Mapping[str, Feature]] = {
        "extensions": Feature(
            about="no, split (parameters gathered as what bfloat16 holds of them, and the rest), "
            "wider (in float64), mixed: tensors with fsdp_pre_all_gather (fsdp2 only)",
            group="Parameters",
            values=("no", *WAYS, "mixed"),
            open=True,
            apis=("fsdp2",),
            excludes={way: {"flips": ("some", "all"), **ANY_CUT} for way in (*WAYS, "mixed")},
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "extensions": Feature(
            about="no, split, wider, mixed: what the unit's parameters say that have a say in what "
            "is gathered of them (fsdp2 only)",
            group="Parameters",
            values=("no", *WAYS, "mixed"),
            apis=("fsdp2",),
        ),
        "split_on_one_rank": Feature(
            about="on when the unit has one shard, and a parameter of it is gathered in two parts "
            "(fsdp2 only)",
            group="Parameters",
            values=ON,
            apis=("fsdp2",),
        ),
    }
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "extension": Feature(
            about="no, split, wider: what the parameter says of itself (fsdp2 only)",
            group="Parameters",
            values=("no", *WAYS),
            apis=("fsdp2",),
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """All parameters together."""
        if not a.fsdp1:
            yield "extensions", one(extensions(a).values())

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Those of the unit."""
        if not a.fsdp1:
            told = extensions(a)
            own = [told[p.fqn] for p in a.owned[path] if p.fqn in told]
            yield "extensions", one(own)
            yield "split_on_one_rank", on("split" in own and a.shards(path) == 1)

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Its own."""
        if not a.fsdp1:
            yield "extension", extensions(a).get(fqn, "no")

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Which they are."""
        if case.extensions:
            yield "extended", ", ".join(f"{e.parameter} {e.sends}" for e in case.extensions)

    def check(self, a: Anatomy) -> None:
        """They are parameters that units of fsdp2 shard, each by one name, on the same path."""
        asked = a.case.extensions
        if not asked:
            return
        at = "$.extensions"
        names = [told.parameter for told in asked]
        check_names(names, a.by_fqn, at, "parameter")
        allowed = may_be_extended(a)
        for i, name in enumerate(names):
            if name not in allowed:
                words = (
                    f"{name!r} is no float32 parameter that, under each plan, a unit of fsdp2 has "
                    "by one name, sharded or whole after forward"
                )
                raise CaseError(words, path=f"{at}[{i}].parameter")
        told = a.case.meta_init
        # ``_load_model_state_dict`` in distributed/checkpoint/state_dict.py assigns what it loads.
        if told is not None and told.by != "reset_parameters":
            raise CaseError(f"{told.by} puts other tensors in their place", path=at)
        if a.case.probes:
            raise CaseError("the memory tracker counts no tensors within tensors", path=at)
        for i, op in enumerate(a.case.program):
            # What one rank gathers in another dtype than the others aborts all of them.
            if op.parts_ranks:
                raise CaseError("ranks that part gather the same dtypes", path=f"$.program[{i}]")
            # Saved as what they are, a class that ``torch.load(weights_only=True)`` does not know.
            if op.stores:
                raise CaseError("DCP loads plain tensors alone", path=f"$.program[{i}]")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None; fewer; in two parts."""
        replace, asked = msgspec.structs.replace, case.extensions
        if asked:
            yield Simpler(replace(case, extensions=()), "all-gather extensions")
        for i, told in enumerate(asked):
            before, after = asked[:i], asked[i + 1 :]
            if before or after:
                yield Simpler(replace(case, extensions=before + after))
            if told.sends != WAYS[0]:
                first = replace(told, sends=WAYS[0])
                yield Simpler(replace(case, extensions=(*before, first, *after)))
