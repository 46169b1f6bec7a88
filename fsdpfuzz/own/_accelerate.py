"""An FSDP configuration of accelerate as a plan: the units that it makes of somebody's model.

Where accelerate is installed, its own code says which modules are units, and refuses what it does
not take (`fsdpfuzz.ranks._imported_accelerate`); elsewhere they are read here. What each option
is told, it reads itself (`Option.configured`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fsdpfuzz.case import (
    OPTIONS,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Imported,
    ImportedModule,
    Plan,
)
from fsdpfuzz.case.mesh import Mesh, mesh_configured
from fsdpfuzz.case.units import options_configured
from fsdpfuzz.case.units.configured import Configuration
from fsdpfuzz.errors import UsageError, one_line
from fsdpfuzz.own._sizes import by_policy, one_by_one
from fsdpfuzz.wire import Accelerated

_POLICY = "fsdp_auto_wrap_policy"
_LAYERS = "fsdp_transformer_layer_cls_to_wrap"
_SIZE = "fsdp_min_num_params"
_POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
_RECOMPUTES = "fsdp_activation_checkpointing"
_READ = frozenset(
    {"fsdp_version", _POLICY, _LAYERS, _SIZE, *(n for o in OPTIONS for n in o.configured_by)}
)
_WITHOUT_EFFECT = frozenset(
    {
        "fsdp_state_dict_type",  # all types are drawn
        "fsdp_sync_module_states",  # all ranks build the same model
        "fsdp_cpu_ram_efficient_loading",
        _RECOMPUTES,
    }
)


@dataclass(frozen=True, slots=True)
class Configured:
    """How a configuration wraps a model."""

    plan: Plan
    mesh: Mesh | None
    notes: tuple[str, ...]
    """What it asks for besides, in words."""


@dataclass(frozen=True, slots=True)
class Sections:
    """A configuration file, all values as texts."""

    path: Path
    top: Mapping[str, str]
    own: Mapping[str, str]
    """The section ``fsdp_config``."""


def configured(
    read: Sections, model: Imported, world_size: int, accelerated: Accelerated | None = None
) -> Configured:
    """What a configuration makes of a model on so many ranks.

    ``accelerated`` is what accelerate's own code says to it. :class:`UsageError` with the file, the
    name and its value where it cannot be followed.
    """
    config = Configuration(str(read.path), read.top, read.own, model)
    first = config.api == "fsdp1"
    paths = ("", *(_layers(config) if accelerated is None else _chosen(config, accelerated)))
    for name in config.own:
        if name not in _READ | _WITHOUT_EFFECT:
            config.note(f"{name} is not followed")
    if config.flag(_RECOMPUTES, default=False):
        config.note(f"{_RECOMPUTES} is tried as one of other ways")
    options = options_configured(Fsdp1Unit if first else Fsdp2Unit, config)
    plan: Plan
    if first:
        plan = Fsdp1Plan(units=tuple(Fsdp1Unit(path=path, **options) for path in paths))
    else:
        plan = Fsdp2Plan(units=tuple(Fsdp2Unit(path=path, **options) for path in paths))
    return Configured(plan, mesh_configured(plan, config, world_size), tuple(config.notes))


def _chosen(config: Configuration, accelerated: Accelerated) -> tuple[str, ...]:
    """The units that accelerate's own code makes."""
    said = f"accelerate {accelerated.version}"
    if accelerated.refused:
        raise UsageError(one_line(f"--config: {config.where}: {said} raised {accelerated.refused}"))
    _check_alone(config, accelerated.units, _LAYERS, "other classes")
    config.note(f"units as {said} makes them")
    return accelerated.units


def _check_alone(config: Configuration, paths: Iterable[str], name: str, instead: str) -> None:
    alone = {module.path for module in config.model.modules if module.alone}
    for path in paths:
        if path not in alone:
            words = f"accelerate would make a unit of {path!r}, which is not called by itself"
            raise config.wrong(name, f"{instead}: {words}")


def _layers(config: Configuration) -> list[str]:
    policy = config.own.get(_POLICY, "NO_WRAP")
    if policy == "NO_WRAP":
        return []
    if policy not in _POLICIES:
        raise config.wrong(_POLICY, ", ".join(_POLICIES))
    if policy == "SIZE_BASED_WRAP":
        return _large(config)
    inner = config.model.modules[1:]
    asked = [part.strip() for part in config.own.get(_LAYERS, "").split(",") if part.strip()]
    there = _classes(inner)
    asked = asked or [wanted for wanted in config.model.layers if wanted in there]
    if not asked:
        raise config.wrong(_LAYERS, f"classes of your layers, of {', '.join(there)}")
    for wanted in asked:
        if wanted not in there:
            words = f"classes that your model has: {', '.join(there)}"
            raise config.wrong(_LAYERS, words, wanted)
    return [m.path for m in inner if m.cls in asked and m.path]


def _large(config: Configuration) -> list[str]:
    """The modules that are large enough; none where the size is zero."""
    text = config.own.get(_SIZE) or "0"
    if not text.isdecimal():
        raise config.wrong(_SIZE, "a number of parameters")
    if not int(text):
        return []
    chosen = by_policy if config.api == "fsdp1" else one_by_one
    paths = chosen(config.model, int(text))
    _check_alone(config, paths, _SIZE, "another size")
    return paths


def _classes(modules: Iterable[ImportedModule]) -> list[str]:
    """Of modules that can be units."""
    return list(dict.fromkeys(m.cls for m in modules if m.alone))


def read_configuration(path: Path) -> Sections:
    """A configuration file; :class:`UsageError` where it is none of accelerate's."""
    try:
        top = msgspec.yaml.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        why = error.strerror or "nobody says why"
        raise UsageError(one_line(f"--config: {str(path)!r} cannot be read: {why}")) from None
    except msgspec.MsgspecError as error:
        raise UsageError(one_line(f"--config: {path}: it is no YAML of names: {error}")) from None
    own = top.pop("fsdp_config", None)
    if not isinstance(own, dict) or not own:
        raise UsageError(
            f"--config: {str(path)!r} has no section fsdp_config: it is no FSDP configuration "
            "of accelerate; `accelerate config` writes one"
        )
    return Sections(path, _texts(top), _texts(own))


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
