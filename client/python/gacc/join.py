# SPDX-License-Identifier: Apache-2.0
"""gacc.attach(): this process becomes a rank of a job."""
from __future__ import annotations

from typing import Any, Optional

from .channel import Channel
from .daemon import lease
from .environment import identity, wants_mailbox
from .errors import GaccError
from .link import Link
from .session import SETUP_S, Session
from .spec import spec_of

OUTAGE_S = 600.0


def attach(job: Any = None, rank: Optional[int] = None, world_size: Optional[int] = None, *, spec: Any = None, endpoint: Optional[str] = None,
           timeout: float = SETUP_S, outage: float = OUTAGE_S, shared_memory: bool = True, mailbox: Optional[bool] = None,
           progress: bool = False) -> Session:
    """Attaches to a job as one of its ranks.

    job         its id or name, or a gacc.Job. None: GACC_JOB_ID, or the name in `spec`
    rank, world_size   None: from the environment of gaccctl run, gaccd, torchrun, srun or mpirun; without any of them, rank 0 of 1
    spec        makes the job if there is none of that name (`job`, or the one in `spec`), else that one is joined as it is: a dictionary, a path or a
                gacc.v1.JobSpec
                (gacc.connect().submit() tells more). Its ranks are the world size unless it says otherwise
    endpoint    of gaccd: a path, unix:PATH or HOST:PORT. None: GACC_ENDPOINT, or the socket of the node's gaccd
    timeout     seconds for attaching; outage: how long every call waits for a gaccd that is away
    shared_memory   False: gradients travel in messages
    mailbox     False: all pushes by gRPC. None: unless GACC_MAILBOX is 0
    progress    rank 0 shows a line with steps, loss, time left and who came last on standard error, if that is a terminal; tqdm draws it, where it is
                installed
    """
    who = identity(None if job is None else str(getattr(job, "id", job)), rank, world_size)
    made = None if spec is None else spec_of(spec, default_ranks=who.world_size)
    name = who.job
    if made is not None and job in (None, ""):
        name = made.name  # as the job in the environment is another one
    elif made is not None and not made.name and not name.isdigit():
        made.name = name
    if not name and made is None:
        raise GaccError("no job given", reason="INVALID_ARGUMENT", hint='set GACC_JOB_ID, start with "gaccctl run", or give a specification')
    leases: list[Any] = [lease()] if endpoint is None else []
    channel = Channel(endpoint)
    link = Link(channel, name, who.rank, who.world_size, made, outage, shared_memory, wants_mailbox() if mailbox is None else mailbox)
    try:
        link.attach(timeout)
    except BaseException:
        owned: list[Any] = [link, channel, *leases]
        for thing in owned:
            thing.close()
        raise
    return Session(link, [channel, *leases], progress)
