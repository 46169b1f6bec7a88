"""The case: one training program under FSDP as plain frozen data.

Glossary, to which the rest of the code refers:

*case*         one drawn example (:class:`CaseSpec`); JSON in, JSON out, byte-stable digest
*api*          ``fsdp1`` (``FullyShardedDataParallel``) or ``fsdp2`` (``fully_shard``)
*place*        a module of the model, named by its FQN in the model before any wrapping
*unit*         a place that FSDP manages as one group of parameters
*plan*         the units of a case with their sharding options
*program*      the list of operations that FSDP and the reference both run
*twin*         another plan, freezing or checkpointing of a case that must give the same result
*width*        size of the last dimension of the data between two modules
*FQN*          fully qualified name, wrapper prefixes such as ``_fsdp_wrapped_module`` removed
"""

from __future__ import annotations

from fsdpfuzz.spec._base import SCHEMA, Part
from fsdpfuzz.spec._case import CaseSpec, Tie
from fsdpfuzz.spec._check import check
from fsdpfuzz.spec._codec import (
    MAX_FILE_BYTES,
    as_document,
    decode,
    digest,
    encode,
    load,
    pretty,
    read_bounded,
)
from fsdpfuzz.spec._contract import (
    REJECTIONS,
    Rejection,
    common_root,
    foreseen_rejections,
    mixed_units,
    split_ties,
)
from fsdpfuzz.spec._delicate import (
    identity_units,
    kept_quiet_units,
    quiet_units,
    reentrant_scopes,
    single_element_units,
)
from fsdpfuzz.spec._features import FEATURES, adapter_names, features
from fsdpfuzz.spec._model import (
    Activation,
    Branches,
    Buffered,
    Dropout,
    Embedding,
    EncoderLayer,
    Gain,
    Idle,
    Linear,
    Lora,
    Matrix,
    Node,
    NodeKind,
    Norm,
    Positions,
    Repeat,
    Residual,
    Sequential,
    Switch,
    Transformer,
)
from fsdpfuzz.spec._plan import (
    Checkpoint,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Plan,
    Precision,
    Twin,
)
from fsdpfuzz.spec._program import (
    Backward,
    Dense,
    Flip,
    Forward,
    Inputs,
    Mode,
    Op,
    Optimizer,
    RequiresGrad,
    StateDict,
    Step,
    Tokens,
    ZeroGrad,
)
from fsdpfuzz.spec._tree import (
    TOKENS,
    Parameter,
    Place,
    case_places,
    parameters,
    places,
    rows_after,
    width_after,
    width_in,
)
from fsdpfuzz.spec._units import (
    frozen_names,
    innermost,
    owners_among,
    planned_units,
    unit_of,
    unit_owner,
    units_among,
    within,
)

__all__ = [
    "FEATURES",
    "MAX_FILE_BYTES",
    "REJECTIONS",
    "SCHEMA",
    "TOKENS",
    "Activation",
    "Backward",
    "Branches",
    "Buffered",
    "CaseSpec",
    "Checkpoint",
    "Dense",
    "Dropout",
    "Embedding",
    "EncoderLayer",
    "Flip",
    "Forward",
    "Fsdp1Plan",
    "Fsdp1Unit",
    "Fsdp2Plan",
    "Fsdp2Unit",
    "Gain",
    "Idle",
    "Inputs",
    "Linear",
    "Lora",
    "Matrix",
    "Mode",
    "Node",
    "NodeKind",
    "Norm",
    "Op",
    "Optimizer",
    "Parameter",
    "Part",
    "Place",
    "Plan",
    "Positions",
    "Precision",
    "Rejection",
    "Repeat",
    "RequiresGrad",
    "Residual",
    "Sequential",
    "StateDict",
    "Step",
    "Switch",
    "Tie",
    "Tokens",
    "Transformer",
    "Twin",
    "ZeroGrad",
    "adapter_names",
    "as_document",
    "case_places",
    "check",
    "common_root",
    "decode",
    "digest",
    "encode",
    "features",
    "foreseen_rejections",
    "frozen_names",
    "identity_units",
    "innermost",
    "kept_quiet_units",
    "load",
    "mixed_units",
    "owners_among",
    "parameters",
    "places",
    "planned_units",
    "pretty",
    "quiet_units",
    "read_bounded",
    "reentrant_scopes",
    "rows_after",
    "single_element_units",
    "split_ties",
    "unit_of",
    "unit_owner",
    "units_among",
    "width_after",
    "width_in",
    "within",
]
