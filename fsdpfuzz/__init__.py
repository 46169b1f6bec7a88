"""Property-based fuzzing of PyTorch FSDP on real ranks.

Importing this package imports neither torch nor Hypothesis.
"""

from __future__ import annotations

from fsdpfuzz._pytest_check import check

__version__ = "0.1.0"

__all__ = ["__version__", "check"]
