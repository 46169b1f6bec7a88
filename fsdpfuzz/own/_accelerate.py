"""An FSDP configuration of accelerate as a plan: the units that it makes of somebody's model.

Only what decides on units and their options is read: accelerate itself need not be installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from fsdpfuzz.case import (
    Api,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Imported,
    ImportedModule,
    Plan,
    Precision,
)
from fsdpfuzz.errors import UsageError, one_line

_TRUE = {"true": True, "yes": True, "false": False, "no": False}
_NOTHING = ("", "null", "none", "~")
_MIXED: Mapping[str, Literal["bfloat16", "float16"] | None] = {
    "no": None,
    "false": None,  # which YAML reads where `no` is not quoted
    "bf16": "bfloat16",
    "fp16": "float16",
}
_BY_NUMBER = {
    "1": "FULL_SHARD",
    "2": "SHARD_GRAD_OP",
    "3": "NO_SHARD",
}
_PREFETCH = {"BACKWARD_PRE": "BACKWARD_PRE", "BACKWARD_POST": "BACKWARD_POST", "NO_PREFETCH": None}
_READ = frozenset(
    {
        "fsdp_version",
        "fsdp_auto_wrap_policy",
        "fsdp_transformer_layer_cls_to_wrap",
        "fsdp_sharding_strategy",
        "fsdp_reshard_after_forward",
        "fsdp_offload_params",
        "fsdp_use_orig_params",
        "fsdp_backward_prefetch",
        "fsdp_forward_prefetch",
    }
)
_WITHOUT_EFFECT = frozenset(
    {
        "fsdp_state_dict_type",  # all types are drawn
        "fsdp_sync_module_states",  # all ranks build the same model
        "fsdp_cpu_ram_efficient_loading",
        "fsdp_min_num_params",
        "fsdp_activation_checkpointing",
    }
)


def plan_from(path: Path, model: Imported) -> tuple[Plan, tuple[str, ...]]:
    """The plan that a configuration makes of a model, and what it asks for besides, in words.

    :class:`UsageError` with the file, the name and its value where it cannot be followed.
    """
    return _Config(path).plan(model)


class _Config:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            data = path.read_bytes()
        except OSError as error:
            why = error.strerror or "nobody says why"
            raise UsageError(one_line(f"--config: {str(path)!r} cannot be read: {why}")) from None
        self.top, self.own = _read(data, path)
        if not self.own:
            raise UsageError(
                f"--config: {str(path)!r} has no section fsdp_config: it is no FSDP configuration "
                "of accelerate; `accelerate config` writes one"
            )
        version = self.own.get("fsdp_version", "1")
        if version not in ("1", "2"):
            raise self._wrong("fsdp_version", "1 or 2")
        self.api: Api = "fsdp1" if version == "1" else "fsdp2"

    def _wrong(self, name: str, wanted: str, value: str | None = None) -> UsageError:
        given = self.own.get(name, self.top.get(name, "")) if value is None else value
        return UsageError(one_line(f"--config: {self.path}: {name}: {given!r}: give {wanted}"))

    def _flag(self, name: str, default: bool) -> bool:
        text = self.own.get(name, "").lower()
        if text in _NOTHING:
            return default
        if text not in _TRUE:
            raise self._wrong(name, "true or false")
        return _TRUE[text]

    def _one_of(self, name: str, values: Mapping[str, Any], default: str) -> Any:
        text = self.own.get(name, "").removeprefix("FSDP.") or default
        if text not in values:
            raise self._wrong(name, f"one of {', '.join(values)}")
        return values[text]

    def plan(self, model: Imported) -> tuple[Plan, tuple[str, ...]]:
        paths = ("", *self._layers(model))
        notes = [
            f"--config: {name} is not followed"
            for name in self.own
            if name not in _READ | _WITHOUT_EFFECT
        ]
        if self._flag("fsdp_activation_checkpointing", False):
            notes.append("--config: fsdp_activation_checkpointing is tried as one of other ways")
        options = self._first() if self.api == "fsdp1" else self._second()
        options["precision"] = self._precision(model, notes)
        plan: Plan
        if self.api == "fsdp1":
            plan = Fsdp1Plan(units=tuple(Fsdp1Unit(path=path, **options) for path in paths))
        else:
            plan = Fsdp2Plan(units=tuple(Fsdp2Unit(path=path, **options) for path in paths))
        return plan, tuple(notes)

    def _layers(self, model: Imported) -> list[str]:
        policy = self.own.get("fsdp_auto_wrap_policy", "NO_WRAP")
        if policy == "NO_WRAP":
            return []
        name = "fsdp_transformer_layer_cls_to_wrap"
        if policy != "TRANSFORMER_BASED_WRAP":
            raise self._wrong("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP or NO_WRAP")
        asked = [part.strip() for part in self.own.get(name, "").split(",") if part.strip()]
        there = _classes(model.modules[1:])
        if not asked:
            raise self._wrong(name, f"classes of your layers, of {', '.join(there)}")
        for wanted in asked:
            if wanted not in there:
                raise self._wrong(name, f"classes that your model has: {', '.join(there)}", wanted)
        return [m.path for m in model.modules[1:] if m.cls in asked and m.path]

    def _first(self) -> dict[str, Any]:
        strategies = {**_BY_NUMBER, **{name: name for name in _BY_NUMBER.values()}}
        asked = self.own.get("fsdp_sharding_strategy") or self.own.get("fsdp_reshard_after_forward")
        found = strategies.get(asked or "FULL_SHARD")
        if found is None:
            raise self._wrong("fsdp_sharding_strategy", ", ".join(_BY_NUMBER.values()), asked)
        return {
            "sharding": found,
            "use_orig_params": self._flag("fsdp_use_orig_params", True),
            "cpu_offload": self._flag("fsdp_offload_params", False),
            "backward_prefetch": self._one_of("fsdp_backward_prefetch", _PREFETCH, "NO_PREFETCH"),
            "forward_prefetch": self._flag("fsdp_forward_prefetch", False),
        }

    def _second(self) -> dict[str, Any]:
        return {
            "reshard_after_forward": self._flag("fsdp_reshard_after_forward", True),
            "cpu_offload": self._flag("fsdp_offload_params", False),
        }

    def _precision(self, model: Imported, notes: list[str]) -> Precision | None:
        asked = self.top.get("mixed_precision", "no").lower()
        if asked not in _MIXED:
            raise self._wrong("mixed_precision", "no, bf16 or fp16")
        dtype = _MIXED[asked]
        if dtype is None:
            return None
        if dtype not in model.computes_in:
            notes.append(
                f"--config: mixed_precision: {asked}: your model does not run in {dtype}, or "
                "rounding decides what comes out, so it is trained in float32"
            )
            return None
        buffers = any(module.buffers for module in model.modules)
        if buffers and self.api == "fsdp2":
            notes.append(
                f"--config: mixed_precision: {asked}: fully_shard leaves buffers in float32, which "
                "accelerate's autocast makes up for; it is trained in float32 here"
            )
            return None
        return Precision(param=dtype, reduce=dtype, buffer=dtype if buffers else None)


def _classes(modules: Iterable[ImportedModule]) -> list[str]:
    """Of modules that can be units."""
    return list(dict.fromkeys(m.cls for m in modules if m.alone))


def _read(data: bytes, path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Names and values at the top, and those of ``fsdp_config``, each value as a text."""
    try:
        top = msgspec.yaml.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise UsageError(one_line(f"--config: {path}: it is no YAML of names: {error}")) from None
    own = top.pop("fsdp_config", None)
    return _texts(top), _texts(own if isinstance(own, dict) else {})


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): _text(value) for name, value in values.items()}


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case list():
            return ",".join(map(_text, value))
        case _:
            return str(value)
