"""``use_orig_params`` of ``FullyShardedDataParallel``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature, Rejection
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import Value
from fsdpfuzz.case.units.base import Option
from fsdpfuzz.case.units.precision import WIDTHS, computed_in, flat_dtype
from fsdpfuzz.case.units.sharding import is_whole

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.modules import Parameter
    from fsdpfuzz.case.units.configured import Configuration
    from fsdpfuzz.case.wrap import Unit

ALIGNED = 16
"""Bytes to which fsdp1 aligns parameters under ``use_orig_params``."""
ANY_FLAT: Mapping[str, tuple[str, ...]] = {"use_orig_params": ("off", "mixed")}
"""Where a unit shows a flat parameter."""


# ``_get_aligned_numel`` in fsdp/_flat_param.py, of the dtype that the unit computes in.
def alignment(a: Anatomy, path: str) -> int:
    """Elements to a multiple of which the parameters of an fsdp1 unit are laid out; 0 if flat."""
    unit = a.options[path]
    return 0 if unit.flat else ALIGNED // WIDTHS[computed_in(unit) or flat_dtype(a, path)]


def flat_layout(
    parameters: Sequence[Parameter], ranks: int, aligned: int
) -> tuple[list[tuple[str, int, int]], int]:
    """Where each parameter starts and ends in the flat parameter, and the total length."""
    spans, total = [], 0
    for parameter in parameters:
        if aligned:
            total += -total % aligned
        spans.append((parameter.fqn, total, total + parameter.numel))
        total += parameter.numel
    if aligned:
        total += -total % ranks
    return spans, total


def flat_parts(
    parameters: Sequence[Parameter], rank: int, ranks: int, aligned: int
) -> dict[str, int]:
    """Elements of each parameter in the shard that ``rank`` has of the flat parameter."""
    spans, total = flat_layout(parameters, ranks, aligned)
    # ``FlatParamHandle._get_unpadded_shard`` cuts by ``torch.chunk``: the last ranks may have less.
    chunk = -(-total // ranks)
    low, high = rank * chunk, (rank + 1) * chunk
    return {fqn: max(0, min(end, high) - max(start, low)) for fqn, start, end in spans}


def mixed_units(a: Anatomy) -> tuple[str, ...]:
    """Paths of the units that manage both frozen and trainable parameters."""
    return tuple(
        path
        for path, owned in a.owned.items()
        if len({parameter.fqn in a.frozen for parameter in owned}) > 1
    )


def _mixes(a: Anatomy) -> bool:
    return a.fsdp1 and any(a.options[path].flat for path in mixed_units(a))


def _saves_optimizer_of_mixed(a: Anatomy) -> bool:
    saves = any(op.saves_optimizer or op.names_state() for op in a.case.program)
    shown = {unit.flat for unit in a.options.values()}
    return a.fsdp1 and saves and a.case.optimizer is not None and len(shown) > 1


def is_flat(a: Anatomy, owner: str | None) -> bool:
    """Whether a unit shows its parameters as one flat parameter."""
    return owner is not None and a.options[owner].flat


def differs_below_a_root(a: Anatomy, name: str) -> bool:
    """Whether units under one root have different values of an option."""
    for root in a.roots:
        below = {getattr(unit, name) for path, unit in a.options.items() if within(path, root)}
        if len(below) > 1:
            return True
    return False


def held_on(a: Anatomy, rank: int) -> dict[str, int]:
    """How many elements of each parameter a rank has between iterations.

    Those of a flat parameter all have its gradient and state on each rank, and so have those that
    fsdp2 shards, where a rank has none of their elements, too.
    """
    held: dict[str, int] = {}
    for owner, parameters in a.managed.items():
        if a.fsdp1 and owner is not None and not is_flat(a, owner) and not is_whole(a, owner):
            ranks, aligned = a.shards(owner), alignment(a, owner)
            # Shard groups are neighbours in rank, so this is the rank's own number in its group.
            held |= flat_parts(parameters, rank % ranks, ranks, aligned)
        else:
            held |= {p.fqn: p.numel for p in parameters}
    return held


class UseOrigParams(Option):
    """Whether a unit shows its original parameters or one flat parameter."""

    name = "use_orig_params"
    configured_by: ClassVar[tuple[str, ...]] = ("fsdp_use_orig_params",)
    by_policy: ClassVar[bool] = False
    feature: ClassVar[Feature] = Feature(
        about="on, off, mixed (fsdp1 only)",
        group="Sharding",
        values=("off", "on", "mixed"),
        apis=("fsdp1",),
        excludes={"off": {"cleared": ("part", "mixed"), "rescaled": ("new data",)}},
    )
    rejections: ClassVar[tuple[Rejection, ...]] = (
        Rejection(
            name="fsdp1_mixed_requires_grad",
            why="use_orig_params=False needs all parameters of a unit frozen or none",
            pattern=r"has both parameters with requires_grad=True and False"
            r"|Must flatten tensors with uniform `requires_grad`",
            source="docstring of FullyShardedDataParallel: constraints when freezing parameters",
            asked=_mixes,
        ),
        Rejection(
            name="fsdp1_mixed_options",
            why="use_orig_params and limit_all_gathers must be the same in all units",
            pattern=r"Expects one homogeneous value for _?(use_orig_params|limit_all_gathers)",
            source="torch/distributed/fsdp/_runtime_utils.py: HOMOGENEOUS_ATTR_NAMES",
            asked=lambda a: (
                a.fsdp1
                and any(
                    differs_below_a_root(a, n) for n in ("use_orig_params", "limit_all_gathers")
                )
            ),
        ),
        Rejection(
            name="fsdp1_mixed_optimizer_state",
            why="the optimizer's state needs the same use_orig_params in all units, also of "
            "several roots",
            pattern=r"Not all FSDP modules have the same _use_orig_params value",
            source="FullyShardedDataParallel._optim_state_dict_impl, which checks it",
            asked=_saves_optimizer_of_mixed,
            raised="AssertionError",
        ),
    )

    def read(self, told: Mapping[str, Any]) -> Any:
        """As they are shown."""
        return told["originals"]

    def configured(self, kind: type[Unit], config: Configuration) -> Any:
        """On, unless it says otherwise."""
        return config.flag(self.configured_by[0], default=True)

    def text(self, value: Any) -> str:
        """``on`` or ``off``."""
        return on(value)

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``use_orig_params``."""
        yield "use_orig_params", value
