"""A job of a campaign: the process behind one of several runs side by side."""

from __future__ import annotations

import sys
import traceback

from fsdpfuzz.cli._interrupt import Interrupts
from fsdpfuzz.errors import ContractError, FsdpFuzzError
from fsdpfuzz.loop import Job, run, write_script
from fsdpfuzz.pool import adopt
from fsdpfuzz.show import spell_out

FAILED = 3


def job(fd: str, server: str = "") -> int:
    """Runs what the campaign at the other end of the descriptor asks for; the exit code.

    ``server`` is the fork server that it lends, if it does.
    """
    for stream in (sys.stdout, sys.stderr):
        spell_out(stream)
    with Interrupts() as interrupts:
        campaign = Job(int(fd))
        try:
            settings = campaign.settings()
            if server:
                adopt(server, settings.session.backend, settings.session.python)
            run(
                settings,
                interrupts.heeded(campaign.tell),
                script=write_script,
                peers=campaign,
            )
        except FsdpFuzzError as error:
            if isinstance(error, ContractError):
                # To the file that the campaign names: the reason alone would say too little.
                traceback.print_exc()
            campaign.fail(str(error))
            return FAILED
        except KeyboardInterrupt:
            # Before the run began, or after the campaign went away: there is nobody to tell.
            return FAILED
        finally:
            campaign.end()
    return 0
