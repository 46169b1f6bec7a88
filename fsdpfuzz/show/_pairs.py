"""Which values of the options came together in the cases of a run, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from fsdpfuzz.spec import FEATURES

MAX_VALUES = 16
"""Different values that are told apart per option; the rest counts as `OTHER`."""
OTHER = "other"

_ON = ("off", "on")
_MIXED = ("off", "on", "mixed")

GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "Wrapping": {
        "api": ("fsdp1", "fsdp2"),
        "world_size": (),
        "wrap": ("nested", "custom_policy", "module_classes"),
        "units": ("1", "2", "3+"),
        "root": ("wrapped", "open"),
        "nesting": ("flat", "root", "deep"),
        "bare_unit": _ON,
        "single_element_unit": _ON,
        "quiet_unit": _ON,
        "kept_quiet_unit": _ON,
        "identity_unit": _ON,
        "ignored": _ON,
    },
    "Sharding": {
        "sharding": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "mixed"),
        "use_orig_params": _MIXED,
        "backward_prefetch": ("off", "BACKWARD_PRE", "BACKWARD_POST", "mixed"),
        "forward_prefetch": _MIXED,
        "limit_all_gathers": _MIXED,
        "reshard_after_forward": ("default", "on", "off", "int", "mixed"),
        "precision": _ON,
        "cpu_offload": _ON,
        "empty_shard": _ON,
        "uneven": _ON,
    },
    "Parameters": {
        "freeze": ("none", "all", "alternate", "adapters", "some"),
        "frozen_unit": _ON,
        "mixed_unit": _ON,
        "tied": ("no", "within unit", "across units", "nested"),
        "reused": ("no", "grad", "no_grad"),
        "unused": _ON,
        "one_element": _ON,
        "scalar": _ON,
        "own_parameter": _ON,
        "buffers": ("no", "persistent", "non-persistent", "updating"),
    },
    "Model": {
        "merge": ("no", "concat", "sum", "stack", "several"),
        "side_input": _ON,
        "norm": ("no", "layer", "rms", "several"),
        "embedding": _ON,
        "lora": _ON,
        "residual": _ON,
        "kinds": (),
    },
    "Training": {
        "checkpoint": ("none", "several"),
        "recomputed_unit": _ON,
        "reentrant": ("no", "whole", "part", "nested", "repeated"),
        "inputs": ("dense", "sequence", "tokens"),
        "input_grad": _ON,
        "optimizer": ("sgd", "adam", "adamw", "none"),
        "accumulation": ("off", "sync", "no_sync"),
        "steps": ("1", "2", "3"),
        "zero_grad": ("never", "none", "zero", "mixed"),
        "state_dict": ("no", "full", "sharded", "local", "several"),
        "state_offload": _ON,
        "state_rank0": _ON,
        "debug_level": ("OFF", "INFO", "DETAIL"),
        "flips": ("no", "some", "all"),
        "refrozen": ("no", "yes", "after lone forward"),
        "non_root_forward": _ON,
        "loss": ("projection", "sum"),
    },
}
"""Options by group, each with the values that can be listed beforehand."""

ONLY_FSDP1 = frozenset(
    {
        "wrap",
        "sharding",
        "use_orig_params",
        "backward_prefetch",
        "forward_prefetch",
        "limit_all_gathers",
        "kept_quiet_unit",
    }
)
ONLY_FSDP2 = frozenset({"reshard_after_forward"})

_Side = tuple[str, tuple[str, ...]]
EXCLUSIVE: tuple[tuple[_Side, _Side], ...] = (
    (("freeze", ("none",)), ("frozen_unit", ("on",))),
    (("freeze", ("none", "all")), ("mixed_unit", ("on",))),
    (("freeze", ("adapters",)), ("lora", ("off",))),
    (("frozen_unit", ("on",)), ("quiet_unit", ("off",))),
    (("quiet_unit", ("off",)), ("kept_quiet_unit", ("on",))),
    (("units", ("1",)), ("nesting", ("root", "deep"))),
    (("units", ("1",)), ("tied", ("across units", "nested"))),
    (("root", ("open",)), ("nesting", ("root",))),
    (("root", ("open",)), ("wrap", ("custom_policy", "module_classes"))),
    (("checkpoint", ("none",)), ("recomputed_unit", ("on",))),
    (("checkpoint", ("none",)), ("reentrant", ("whole", "part", "nested", "repeated"))),
    (("merge", ("no",)), ("side_input", ("on",))),
    (("inputs", ("tokens",)), ("embedding", ("off",))),
    (("inputs", ("dense", "sequence")), ("embedding", ("on",))),
    (("inputs", ("tokens",)), ("input_grad", ("on",))),
    (("optimizer", ("none",)), ("steps", ("1", "2", "3"))),
    (("state_dict", ("no",)), ("state_offload", ("on",))),
    (("state_dict", ("no",)), ("state_rank0", ("on",))),
    (("empty_shard", ("on",)), ("uneven", ("off",))),
    (("one_element", ("on",)), ("empty_shard", ("off",))),
    (("one_element", ("on",)), ("uneven", ("off",))),
)
"""Values that rule each other out by what they mean, on two ranks or more."""

_VALUES = {name: values for group in GROUPS.values() for name, values in group.items()}


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """An option with one of its values, and how many cases took it."""

    option: str
    value: str
    count: int = 0

    def __str__(self) -> str:
        return f"{self.option}={self.value}"


class BlindSpot(msgspec.Struct, frozen=True, kw_only=True):
    """Two values that many cases took and none took together.

    ``expected`` is how many would have, had the two been drawn independently.
    """

    first: Value
    second: Value
    expected: float


class PairTable(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a run as data: JSON in, JSON out.

    ``pairs`` maps positions in ``values``, the smaller one first, to the number of cases;
    pairs that never came together are left out.
    """

    cases: int
    values: tuple[Value, ...]
    pairs: dict[str, int]
    missing: tuple[Value, ...] = ()
    """Values that no case took."""

    def count(self, first: int, second: int) -> int:
        """How many cases took both values, given by position."""
        low, high = sorted((first, second))
        return self.values[low].count if low == high else self.pairs.get(f"{low},{high}", 0)

    def possible(self, first: int, second: int) -> bool:
        """Whether a case can take both values, given by position."""
        a, b = self.values[first], self.values[second]
        if a.option == b.option:
            return False
        return self.count(first, second) > 0 or not _exclusive(a, b)

    @property
    def met(self) -> int:
        """Number of different pairs that were exercised."""
        return len(self.pairs)

    @property
    def reachable(self) -> int:
        """Number of different pairs of values, each taken by itself, that can come together."""
        size = len(self.values)
        return sum(self.possible(i, j) for i in range(size) for j in range(i + 1, size))

    def blind_spots(self, most: int) -> list[BlindSpot]:
        """The pairs never exercised whose values were the most common, worst first."""
        found = []
        for i, first in enumerate(self.values):
            for j in range(i + 1, len(self.values)):
                if not self.count(i, j) and self.possible(i, j):
                    second = self.values[j]
                    expected = first.count * second.count / max(self.cases, 1)
                    found.append(BlindSpot(first=first, second=second, expected=expected))
        found.sort(key=lambda spot: (-spot.expected, str(spot.first), str(spot.second)))
        return found[:most]


class PairCounts:
    """Counts pairs of option values. Its memory is bounded, however many cases come."""

    def __init__(self) -> None:
        self._cases = 0
        self._values: dict[str, dict[str, int]] = {name: {} for name in FEATURES}
        self._names: list[tuple[str, str]] = []
        self._counts: Counter[int] = Counter()
        self._pairs: Counter[tuple[int, int]] = Counter()

    def add(self, features: Mapping[str, str]) -> None:
        """Counts one case, given by `spec.features`."""
        self._cases += 1
        ids = sorted(self._id(option, value) for option, value in features.items())
        self._counts.update(ids)
        self._pairs.update(
            (ids[i], ids[j]) for i in range(len(ids)) for j in range(i + 1, len(ids))
        )

    def table(self) -> PairTable:
        """The counts so far, options and values in a fixed order."""
        order = sorted(range(len(self._names)), key=lambda i: _rank(*self._names[i]))
        position = {old: new for new, old in enumerate(order)}
        pairs = {}
        for (a, b), count in self._pairs.items():
            low, high = sorted((position[a], position[b]))
            pairs[low, high] = count
        taken = set(self._names)
        return PairTable(
            cases=self._cases,
            values=tuple(
                Value(option=name, value=value, count=self._counts[old])
                for old in order
                for name, value in (self._names[old],)
            ),
            pairs={f"{low},{high}": pairs[low, high] for low, high in sorted(pairs)},
            missing=tuple(
                Value(option=name, value=value)
                for name, values in _VALUES.items()
                for value in values
                if (name, value) not in taken and _within(name, self._values["api"])
            ),
        )

    def _id(self, option: str, value: str) -> int:
        values = self._values.setdefault(option, {})
        if value not in values and len(values) >= MAX_VALUES:
            value = OTHER
        known = values.get(value)
        if known is None:
            known = values[value] = len(self._names)
            self._names.append((option, value))
        return known


def group_of(option: str) -> str:
    """The group that an option is shown in."""
    return next((name for name, options in GROUPS.items() if option in options), "Model")


def _apis(value: Value) -> set[str]:
    """The APIs under which a value can be taken."""
    if value.option == "api":
        return {value.value}
    if value.option in ONLY_FSDP1:
        return {"fsdp1"}
    return {"fsdp2"} if value.option in ONLY_FSDP2 else {"fsdp1", "fsdp2"}


def _exclusive(a: Value, b: Value) -> bool:
    """Whether the meaning of two values rules out that a case takes both."""
    if not _apis(a) & _apis(b):
        return True
    return any(
        one in (a.option, b.option)
        and other in (a.option, b.option)
        and (a.value if a.option == one else b.value) in ones
        and (a.value if a.option == other else b.value) in others
        for (one, ones), (other, others) in EXCLUSIVE
    )


def _within(option: str, apis: Collection[str]) -> bool:
    """Whether an option exists under the APIs that the run was about."""
    return not apis or bool(_apis(Value(option=option, value="")) & set(apis)) or option == "api"


def _rank(option: str, value: str) -> tuple[int, int, int, str]:
    groups = list(GROUPS)
    group = group_of(option)
    options = list(GROUPS[group])
    values = _VALUES.get(option, ())
    return (
        groups.index(group),
        options.index(option) if option in options else len(options),
        values.index(value) if value in values else len(values),
        value,
    )
