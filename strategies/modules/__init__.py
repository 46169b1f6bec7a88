"""How the kinds of module are drawn: a file each, with the name of the kind in `case.modules`."""

from __future__ import annotations
