"""FQNs without the prefixes that wrappers put into them."""

from __future__ import annotations

from torch import nn

_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module"})


def clean(fqn: str) -> str:
    """``fqn`` as it was before FSDP1 and ``checkpoint_wrapper`` put modules in between."""
    return ".".join(part for part in fqn.split(".") if part not in _WRAPPERS)


def replace(model: nn.Module, path: str, new: nn.Module) -> nn.Module:
    """Puts ``new`` where ``path`` is, and returns the root, which is ``new`` for an empty path."""
    if not path:
        return new
    owner_path, _, name = path.rpartition(".")
    setattr(unwrapped(model.get_submodule(owner_path)), name, new)
    return model


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's module inside any wrappers."""
    for name in ("_fsdp_wrapped_module", "_checkpoint_wrapped_module"):
        inner = module._modules.get(name)
        if inner is not None:
            return unwrapped(inner)
    return module
