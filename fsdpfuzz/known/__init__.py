"""Known defects of FSDP: a file each, with a predicate as narrow as it can be.

``corpus/known/<id>.json`` says why a defect is one, where it was seen, which cases can show it
and as which findings, with the smallest such case and findings that it must not explain.
"""

from __future__ import annotations

from fsdpfuzz.known.check import Checked, check_known
from fsdpfuzz.known.defect import TO_WRITE, Defect, MustNot, Pattern, Predicate
from fsdpfuzz.known.files import Known, defect_files, defect_in, is_id, read_defect, write_defect
from fsdpfuzz.known.propose import Proposal, propose

__all__ = [
    "TO_WRITE",
    "Checked",
    "Defect",
    "Known",
    "MustNot",
    "Pattern",
    "Predicate",
    "Proposal",
    "check_known",
    "defect_files",
    "defect_in",
    "is_id",
    "propose",
    "read_defect",
    "write_defect",
]
