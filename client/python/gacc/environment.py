# SPDX-License-Identifier: Apache-2.0
"""Which job and rank this process is, and where gaccd is, from the variables that gaccctl run, gaccd, torchrun, srun and mpirun set.

The same rules as libgacc's (client/lib/env.c): an empty variable counts as unset.
"""
from __future__ import annotations

import itertools
import os
import pathlib
import socket
import sys
from typing import Any, Mapping, NamedTuple, Optional

from .errors import GaccError

DEFAULT_ENDPOINT = "unix:/run/gaccd/gaccd.sock"
# In order of precedence. PMI comes last: srun and mpirun set it beside their own variables.
PAIRS = (("GACC_RANK", "GACC_WORLD_SIZE"), ("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"),
         ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
JOBS = ("GACC_JOB_ID", "TORCHELASTIC_RUN_ID")


class Identity(NamedTuple):
    job: str  # id or name; "" if nobody says
    rank: int
    world_size: int
    source: str  # the variable that told the rank, "argument", or "alone"


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name) or ""
    if not text.isascii() or not text.isdigit():
        raise GaccError(f"{name}={text} is not a number from 0 on", reason="INVALID_ARGUMENT")
    return int(text)


def _pair(env: Mapping[str, str], rank: Optional[int], world_size: Optional[int]) -> tuple[int, int, str]:
    for names in PAIRS:
        have = [name for name in names if env.get(name)]
        if not have:
            continue
        needed = [name for name, given in zip(names, (rank, world_size)) if given is None]
        missing = [name for name in needed if name not in have]
        if missing:
            raise GaccError(f"{have[0]} is set but {missing[0]} is not", reason="INVALID_ARGUMENT", hint="set both, or give rank and world_size")
        source = names[0] if rank is None else "argument"
        return (_number(env, names[0]) if rank is None else rank, _number(env, names[1]) if world_size is None else world_size, source)
    if rank is None and world_size in (None, 1):
        return 0, 1, "alone"
    raise GaccError("no rank", reason="INVALID_ARGUMENT",
                    hint='give rank and world_size, set RANK and WORLD_SIZE, or start with "gaccctl run", torchrun, srun or mpirun')


def identity(job: Optional[str] = None, rank: Optional[int] = None, world_size: Optional[int] = None,
             env: Mapping[str, str] = os.environ) -> Identity:
    """What is given wins over what the environment says. Nothing at all: rank 0 of 1."""
    source = "argument"
    if rank is None or world_size is None:
        rank, world_size, source = _pair(env, rank, world_size)
    if world_size < 1 or not 0 <= rank < world_size:
        raise GaccError(f"rank {rank} (from {source}) is not in a world of {world_size}", reason="INVALID_ARGUMENT")
    named = next((env[name] for name in JOBS if env.get(name)), "")
    return Identity(str(job) if job not in (None, "") else named, rank, world_size, source)


_numbers = itertools.count()  # of jobs of this process


def named_identity(job: Any = None, rank: Optional[int] = None, world_size: Optional[int] = None) -> Identity:
    """The same for those who make their job, if it is not there; `job` may be a gacc.Job. One rank that nobody has told its job has one of its own."""
    who = identity(None if job is None else str(getattr(job, "id", job)), rank, world_size)
    if who.job:
        return who
    if who.world_size > 1:
        raise GaccError(f"rank {who.rank} of {who.world_size} does not know its job", reason="INVALID_ARGUMENT",
                        hint='give job= a name that all ranks use, or set GACC_JOB_ID')
    script = pathlib.Path(sys.argv[0] or "python").stem or "python"
    return who._replace(job=f"{script}-{os.getpid()}-{next(_numbers)}")


private_endpoint: Optional[str] = None  # of the gaccd that gacc.local() has started (daemon.py)


def endpoint_or_default(endpoint: Optional[str] = None, env: Mapping[str, str] = os.environ) -> str:
    return endpoint or private_endpoint or env.get("GACC_ENDPOINT") or DEFAULT_ENDPOINT


def target_of(endpoint: str) -> str:
    """gRPC's name for what people write: a path (it has a slash, HOST:PORT has none), unix:PATH, unix:///PATH, HOST:PORT."""
    if endpoint.startswith(("dns:", "ipv4:", "ipv6:")):
        return endpoint
    if endpoint.startswith("unix:"):
        path = endpoint[5:]
        return "unix:" + (path[2:] if path.startswith("///") else path)
    return ("unix:" if "/" in endpoint else "dns:") + endpoint


def place_of(target: str) -> Optional[tuple[str, int]]:
    """Host and port of a target that is no unix socket; None: it has no port."""
    host, _, port = target.split(":", 1)[1].lstrip("/").rpartition(":")
    return (host.strip("[]"), int(port)) if port.isascii() and port.isdigit() else None


def answers(endpoint: str) -> bool:
    """Somebody listens at this endpoint."""
    target = target_of(endpoint)
    try:
        if target.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(target[5:])
        else:
            place = place_of(target)
            if place is None:
                return False
            socket.create_connection(place, 2).close()
    except OSError:
        return False
    return True


def wants_mailbox(env: Mapping[str, str] = os.environ) -> bool:
    return env.get("GACC_MAILBOX") != "0"
