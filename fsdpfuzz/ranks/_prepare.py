"""What each fresh rank would do in its first case, done once in the process it comes from."""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import suppress

import msgspec

from fsdpfuzz import steps
from fsdpfuzz.case import CaseSpec
from fsdpfuzz.case.base import remember_defaults


def prepare() -> None:
    """Imports all steps, and has msgspec look at all that a case consists of.

    It starts no thread and no device: neither lives on in a fork.
    """
    for module in pkgutil.walk_packages(steps.__path__, f"{steps.__name__}."):
        # Another torch may lack what one of them names; a rank says so when a case needs it.
        with suppress(ImportError, AttributeError):
            importlib.import_module(module.name)
    msgspec.json.Decoder(CaseSpec)
    remember_defaults()
