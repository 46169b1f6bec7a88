"""The case: one training program under FSDP as plain frozen data, and what follows from it.

Glossary, to which the rest of the code refers:

*case*         one drawn example (:class:`CaseSpec`); JSON in, JSON out, byte-stable digest
*dimension*    one thing that a case can vary in; it has a file of its name in each room
*api*          ``fsdp1`` (``FullyShardedDataParallel``) or ``fsdp2`` (``fully_shard``)
*place*        a module of the model, named by its FQN in the model before any wrapping
*unit*         a place that FSDP manages as one group of parameters
*root*         a unit that lies in no other unit
*plan*         the units of a case with their sharding options
*program*      the list of operations that FSDP and the reference both run
*recipe*       what a case does, as calls of steps with literal arguments
*step*         a function of torch in ``fsdpfuzz.steps``, called by ranks and quoted by scripts
*reference*    the same training program without FSDP: DDP, and a float64 replica on each rank
*baseline*     how far DDP in float32 is from the float64 replica on the same tensor
*variant*      the same training written another way, which must come to the same result
*width*        size of the last dimension of the data between two modules
*local shard*  what a rank holds of a parameter
*FQN*          fully qualified name, wrapper prefixes such as ``_fsdp_wrapped_module`` removed
*hazard*       a structure where FSDP's rules for units are easily broken
"""

from __future__ import annotations

from fsdpfuzz.case.anatomy import Anatomy, anatomy
from fsdpfuzz.case.base import LOWER, MAX_RANKS, SCHEMA, Dtype, Part, default_of
from fsdpfuzz.case.called_alone import calls_by_the_book, stands_alone
from fsdpfuzz.case.chain import ITERATION, chain
from fsdpfuzz.case.check import check, is_sound
from fsdpfuzz.case.checkpoints import (
    Checkpoint,
    CheckpointKind,
    recomputed,
    recomputed_around,
    reentrant_scopes,
    reference_recomputes,
)
from fsdpfuzz.case.codec import (
    MAX_FILE_BYTES,
    as_document,
    decode,
    digest,
    encode,
    load,
    pretty,
    read_bounded,
)
from fsdpfuzz.case.dimension import APIS, Api, Dimension, Feature, Rejection, Simpler
from fsdpfuzz.case.dimensions import DIMENSIONS
from fsdpfuzz.case.features import (
    FEATURES,
    NEWER,
    PARAMETER_FEATURES,
    REJECTIONS,
    UNIT_FEATURES,
    case_features,
    features,
    foreseen_rejections,
    needs_gloo,
    needs_gpu,
    needs_of_torch,
    parameter_features,
    unit_features,
)
from fsdpfuzz.case.flow import Situation
from fsdpfuzz.case.freezing import adapter_names
from fsdpfuzz.case.hazards import (
    called_units,
    identity_units,
    kept_whole,
    kept_without_gradient,
    single_element_units,
    units_without_gradient,
)
from fsdpfuzz.case.inputs import Dense, Given, Inputs, Tokens
from fsdpfuzz.case.lacking import surely_trains
from fsdpfuzz.case.lowering import FLAT, Lowering, lower
from fsdpfuzz.case.modules import (
    CLASSES,
    KINDS,
    TOKENS,
    Activation,
    ActivationName,
    Branches,
    Buffered,
    Called,
    Dropout,
    Embedding,
    EncoderLayer,
    Gain,
    Idle,
    Imported,
    ImportedModule,
    ImportedParameter,
    Linear,
    Lora,
    Matrix,
    Method,
    Model,
    Node,
    NodeBase,
    Norm,
    Parameter,
    Place,
    Positions,
    Repeat,
    Residual,
    Sequential,
    Switch,
    Transformer,
    tree_of,
)
from fsdpfuzz.case.operations import (
    OPERATIONS,
    Backward,
    Flip,
    Forward,
    Mode,
    Op,
    OperationBase,
    Rebuild,
    RequiresGrad,
    StateDict,
    Step,
    ZeroGrad,
)
from fsdpfuzz.case.operations.forward import (
    calls_below_the_root,
    most_pending,
)
from fsdpfuzz.case.operations.requires_grad import changes_after_lone_forward
from fsdpfuzz.case.optimizer import Optimizer
from fsdpfuzz.case.paths import depth, innermost, join, outermost, within
from fsdpfuzz.case.program import is_orderly, uses_reduced
from fsdpfuzz.case.randomness import right_in
from fsdpfuzz.case.sides import side_of
from fsdpfuzz.case.spec import CaseSpec
from fsdpfuzz.case.strict import decode_strictly
from fsdpfuzz.case.ties import Tie
from fsdpfuzz.case.tree import own_places, places_of
from fsdpfuzz.case.units import OPTIONS, Option, Precision, Sharding
from fsdpfuzz.case.units.param_dtype_override import overrides_fit
from fsdpfuzz.case.units.precision import (
    EPSILON,
    WIDTHS,
    cast_buffer,
    coarsest,
    coarsest_buffer,
    dtypes_fit,
)
from fsdpfuzz.case.units.use_orig_params import mixed_units
from fsdpfuzz.case.variants import Variant, variant_of, variants
from fsdpfuzz.case.wrap import (
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Plan,
    Unit,
    by_hand,
    unit_of,
    unit_paths,
    with_units,
)
from fsdpfuzz.case.written import WRITTEN, written

__all__ = [
    "APIS",
    "CLASSES",
    "DIMENSIONS",
    "EPSILON",
    "FEATURES",
    "FLAT",
    "ITERATION",
    "KINDS",
    "LOWER",
    "MAX_FILE_BYTES",
    "MAX_RANKS",
    "NEWER",
    "OPERATIONS",
    "OPTIONS",
    "PARAMETER_FEATURES",
    "REJECTIONS",
    "SCHEMA",
    "TOKENS",
    "UNIT_FEATURES",
    "WIDTHS",
    "WRITTEN",
    "Activation",
    "ActivationName",
    "Anatomy",
    "Api",
    "Backward",
    "Branches",
    "Buffered",
    "Called",
    "CaseSpec",
    "Checkpoint",
    "CheckpointKind",
    "Dense",
    "Dimension",
    "Dropout",
    "Dtype",
    "Embedding",
    "EncoderLayer",
    "Feature",
    "Flip",
    "Forward",
    "Fsdp1Plan",
    "Fsdp1Unit",
    "Fsdp2Plan",
    "Fsdp2Unit",
    "Gain",
    "Given",
    "Idle",
    "Imported",
    "ImportedModule",
    "ImportedParameter",
    "Inputs",
    "Linear",
    "Lora",
    "Lowering",
    "Matrix",
    "Method",
    "Mode",
    "Model",
    "Node",
    "NodeBase",
    "Norm",
    "Op",
    "OperationBase",
    "Optimizer",
    "Option",
    "Parameter",
    "Part",
    "Place",
    "Plan",
    "Positions",
    "Precision",
    "Rebuild",
    "Rejection",
    "Repeat",
    "RequiresGrad",
    "Residual",
    "Sequential",
    "Sharding",
    "Simpler",
    "Situation",
    "StateDict",
    "Step",
    "Switch",
    "Tie",
    "Tokens",
    "Transformer",
    "Unit",
    "Variant",
    "ZeroGrad",
    "adapter_names",
    "anatomy",
    "as_document",
    "by_hand",
    "called_units",
    "calls_below_the_root",
    "calls_by_the_book",
    "case_features",
    "cast_buffer",
    "chain",
    "changes_after_lone_forward",
    "check",
    "coarsest",
    "coarsest_buffer",
    "decode",
    "decode_strictly",
    "default_of",
    "depth",
    "digest",
    "dtypes_fit",
    "encode",
    "features",
    "foreseen_rejections",
    "identity_units",
    "innermost",
    "is_orderly",
    "is_sound",
    "join",
    "kept_whole",
    "kept_without_gradient",
    "load",
    "lower",
    "mixed_units",
    "most_pending",
    "needs_gloo",
    "needs_gpu",
    "needs_of_torch",
    "outermost",
    "overrides_fit",
    "own_places",
    "parameter_features",
    "places_of",
    "pretty",
    "read_bounded",
    "recomputed",
    "recomputed_around",
    "reentrant_scopes",
    "reference_recomputes",
    "right_in",
    "side_of",
    "single_element_units",
    "stands_alone",
    "surely_trains",
    "tree_of",
    "unit_features",
    "unit_of",
    "unit_paths",
    "units_without_gradient",
    "uses_reduced",
    "variant_of",
    "variants",
    "with_units",
    "within",
    "written",
]
