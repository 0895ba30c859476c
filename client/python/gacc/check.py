# SPDX-License-Identifier: Apache-2.0
"""python -m gacc.check: does everything that a trainer needs work here? One line for each thing, with what to do where it does not.

    python -m gacc.check [--endpoint E] [--local]

It makes a job of one rank, pushes one gradient there and back, and looks at the parameter that comes of it. Ends with 0, or with 1 at the first
thing that is wrong.
"""
from __future__ import annotations

import argparse
import os
import platform
import socket
import sys
import time
from typing import Any, Callable, Iterator

from . import environment
from .errors import GaccError
from .version import __version__

COUNT, ROUNDS = 1024, 50
SPEC = {"name": f"gacc-check-{os.getpid()}", "ranks": 1, "micro_size": 1, "steps": ROUNDS, "optimizer": {"type": "sgd", "lr": 1.0}}


def versions() -> str:
    import google.protobuf
    import grpc
    import numpy

    from .messages import types
    types()
    return (f"gacc {__version__}, Python {platform.python_version()}, grpcio {grpc.__version__}, protobuf {google.protobuf.__version__}, "
            f"numpy {numpy.__version__}")


def reached(endpoint: str) -> str:
    """The socket itself: gRPC would not tell a socket that is not there from one that may not be used."""
    target = environment.target_of(endpoint)
    if not target.startswith("unix:"):
        return target
    path = target[5:]
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
    except FileNotFoundError:
        raise GaccError(f"{path} is not there", reason="UNAVAILABLE", hint="start gaccd, set GACC_ENDPOINT to its socket, or try --local") from None
    except PermissionError:
        raise GaccError(f"{path} may not be used by {os.getuid()}", reason="PERMISSION_DENIED",
                        hint="join the socket's group (listen.group in gaccd's configuration)") from None
    except OSError as e:
        raise GaccError(f"{path}: {e.strerror}", reason="UNAVAILABLE", hint="is gaccd running? Its log tells why not") from None
    return path


def answered(endpoint: str) -> str:
    from .client import Client
    with Client(endpoint, outage=5) as client:
        node = client.node()
    return f"gaccd {node.version} on {node.name}, pid {node.pid}, {node.jobs} jobs"


def trained(endpoint: str) -> Iterator[tuple[str, str]]:
    """A whole small job."""
    import numpy

    from .join import attach
    with attach(spec=SPEC, rank=0, world_size=1, endpoint=endpoint, outage=10) as session:
        yield "session", f"job {session.job_id}"
        session.register({"x": ("f32", (COUNT,))})
        if session.params_needed:
            session.upload({"x": numpy.zeros(COUNT, numpy.float32)})
        session.ready(30)
        yield "shared memory", "no: gradients travel in messages" if session.is_inline else f"{session.slots} slots of {4 * COUNT} bytes"
        yield "mailbox", "yes" if session.has_mailbox else "no: pushes go by gRPC"
        times = []
        while not session.done:
            session.slot()["x"][:] = 1
            start = time.perf_counter()
            session.push()
            times.append(time.perf_counter() - start)
            step = session.wait()
        if not (session.parameters["x"] == -float(step.applied_step)).all():
            raise GaccError(f"the parameter is {session.parameters['x'][0]}, not {-step.applied_step}", reason="INTERNAL", hint="please report it")
        yield "push there and back", f"{sorted(times)[len(times) // 2] * 1e6:.0f} us, {step.applied_step} steps, the parameters are right"


def main(arguments: Any = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gacc.check", description="Does everything that a trainer needs work here?")
    parser.add_argument("--endpoint", help="of gaccd; else GACC_ENDPOINT, or the node's socket")
    parser.add_argument("--local", action="store_true", help="start a gaccd for this check if none answers")
    options = parser.parse_args(arguments)
    endpoint = environment.endpoint_or_default(options.endpoint)
    started = None
    if options.local and not options.endpoint:
        from .daemon import local
        started = local()
        endpoint = started.endpoint
    try:
        return run(endpoint)
    finally:
        if started:
            started.close()


def run(endpoint: str) -> int:
    parts: list[tuple[str, Callable[[], str]]] = [("versions", versions), ("socket", lambda: reached(endpoint)), ("gaccd", lambda: answered(endpoint))]
    at = ""
    try:
        for at, part in parts:
            tell(at, part())
        at = "training"
        for at, said in trained(endpoint):
            tell(at, said)
    except (GaccError, ImportError) as e:
        tell(at, f"FAILED: {e}")
        return 1
    return 0


def tell(what: str, said: str) -> None:
    sys.stdout.write(f"{what:20} {said}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
