"""What tests of ranks leave behind in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from fsdpfuzz.ranks import _imported


@pytest.fixture
def forgotten_targets() -> Iterator[None]:
    """Modules of targets are imported anew by the next test."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("own_"):
            del sys.modules[name]
    _imported._loaded.clear()
    _imported.function.cache_clear()
