"""The loop: draws cases, has them run and judged, keeps and shrinks what fails.

Importing this package imports neither torch nor Hypothesis.
"""

from __future__ import annotations

from fsdpfuzz.loop._campaign import JOBS, campaign, jobs_of
from fsdpfuzz.loop._checks import Checks
from fsdpfuzz.loop._events import (
    Also,
    CaseDone,
    Counts,
    Emit,
    Event,
    FindingDone,
    FindingMet,
    Found,
    JobDone,
    Notice,
    Rate,
    RunFinished,
    RunStarted,
    Script,
    Scripting,
    Shrinking,
    Summary,
)
from fsdpfuzz.loop._examined import Examined
from fsdpfuzz.loop._folders import LATEST, RUNS, make_run_folder, point_at, run_name
from fsdpfuzz.loop._job import Job
from fsdpfuzz.loop._json import RESULT_SCHEMA, summary_document, write_json
from fsdpfuzz.loop._known import lacking_in_torch
from fsdpfuzz.loop._ledger import WriteScript
from fsdpfuzz.loop._machine import (
    Resolved,
    guess_backend,
    installed_torch,
    jobs_for,
    resolve_machine,
)
from fsdpfuzz.loop._own import check_own
from fsdpfuzz.loop._ports import Archive, KnownLike, PoolLike, Ports, Sighting
from fsdpfuzz.loop._profiles import PROFILES, Profile, profile_named, register_profiles
from fsdpfuzz.loop._properties import (
    PROPERTIES,
    Property,
    Scope,
    drawn,
    properties_named,
    scope_now,
    set_scope,
)
from fsdpfuzz.loop._real import real_ports
from fsdpfuzz.loop._reduction import Reduction, keep_raised
from fsdpfuzz.loop._run import DIGESTS, Stopped, run
from fsdpfuzz.loop._scripts import FLAKY_ATTEMPTS, injection_launcher, write_script
from fsdpfuzz.loop._session import Session
from fsdpfuzz.loop._settings import (
    APIS,
    OUTPUT,
    Api,
    RunSettings,
    SessionSettings,
    default_corpus,
    default_known,
)

__all__ = [
    "APIS",
    "DIGESTS",
    "FLAKY_ATTEMPTS",
    "JOBS",
    "LATEST",
    "OUTPUT",
    "PROFILES",
    "PROPERTIES",
    "RESULT_SCHEMA",
    "RUNS",
    "Also",
    "Api",
    "Archive",
    "CaseDone",
    "Checks",
    "Counts",
    "Emit",
    "Event",
    "Examined",
    "FindingDone",
    "FindingMet",
    "Found",
    "Job",
    "JobDone",
    "KnownLike",
    "Notice",
    "PoolLike",
    "Ports",
    "Profile",
    "Property",
    "Rate",
    "Reduction",
    "Resolved",
    "RunFinished",
    "RunSettings",
    "RunStarted",
    "Scope",
    "Script",
    "Scripting",
    "Session",
    "SessionSettings",
    "Shrinking",
    "Sighting",
    "Stopped",
    "Summary",
    "WriteScript",
    "campaign",
    "check_own",
    "default_corpus",
    "default_known",
    "drawn",
    "guess_backend",
    "injection_launcher",
    "installed_torch",
    "jobs_for",
    "jobs_of",
    "keep_raised",
    "lacking_in_torch",
    "make_run_folder",
    "point_at",
    "profile_named",
    "properties_named",
    "real_ports",
    "register_profiles",
    "resolve_machine",
    "run",
    "run_name",
    "scope_now",
    "set_scope",
    "summary_document",
    "write_json",
    "write_script",
]
