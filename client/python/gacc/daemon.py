# SPDX-License-Identifier: Apache-2.0
"""gacc.local(): a gaccd of one's own, for notebooks, tests and machines without one.

It is `gaccd --supervise` as this user in a private directory. A shell between it and this process ends it and removes the directory when this
process is gone, however that happens.
"""
from __future__ import annotations

import atexit
import logging
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time
from typing import Any, Mapping, Optional

from . import environment
from .errors import GaccError

log = logging.getLogger("gacc")

START_S, STOP_S = 30.0, 20.0
PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin")  # beside PATH, which may lack sbin
# Its standard input is a pipe from the process that wants gaccd: the pipe's end is that process's end, or its close().
GUARD = """
dir=$1; shift
exec 3<&0 </dev/null
"$@" 3<&- & daemon=$!
(read -r nothing <&3; kill $daemon) 2>/dev/null & reader=$!
wait $daemon; status=$?
kill $reader 2>/dev/null
[ $status != 0 ] || rm -rf -- "$dir"
exit $status
"""

_lock = threading.Lock()
_running: Optional["Local"] = None


def find_gaccd(program: Optional[str] = None) -> str:
    """The path of gaccd."""
    found = program or shutil.which("gaccd") or next((str(p) for p in map(pathlib.Path, (f"{d}/gaccd" for d in PLACES)) if os.access(p, os.X_OK)), None)
    if not found or not shutil.which(found):
        raise GaccError(f"no gaccd: {program} is no program" if program else "no gaccd on this machine", reason="NO_DAEMON",
                        hint="install the package gaccd, or build it from the source tree of gacc (README.md) and put build/bin on PATH, or give program=")
    return found


class Local:
    """A running gaccd. `endpoint` is its socket, `directory` where it lies (None: it was there before, and stays)."""

    def __init__(self, endpoint: str, directory: Optional[str] = None, guard: Any = None):
        self.endpoint, self.directory = endpoint, directory
        self._guard, self._pid, self._leases = guard, os.getpid(), 0

    def _take(self) -> "Lease":
        self._leases += 1
        return Lease(self)

    def _give_back(self) -> None:
        with _lock:
            self._leases -= 1
            last = self._leases <= 0
        if last:
            self.close()

    def close(self) -> None:
        """Ends gaccd, if this process has started it; its jobs end with it. The last session's detach() does it, too, and the end of the process."""
        global _running
        if self._guard is None or os.getpid() != self._pid:
            return
        with _lock:
            guard, self._guard = self._guard, None
            if guard is None:
                return
            guard.stdin.close()
            if _running is self:
                _running, environment.private_endpoint = None, None
        try:
            guard.wait(STOP_S)
        except subprocess.TimeoutExpired:
            log.warning("gaccd in %s does not stop", self.directory)

    def __enter__(self) -> "Local":
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        self.close()


class Lease:
    """What a session holds of a Local; the last one ends it."""

    def __init__(self, of: Optional[Local]):
        self._of = of

    def close(self) -> None:
        of, self._of = self._of, None
        if of and os.getpid() == of._pid:
            of._give_back()


def lease() -> Lease:
    """For a session that goes to the default endpoint."""
    with _lock:
        return _running._take() if _running else Lease(None)


def _start(program: str, conf: Mapping[str, Any]) -> Local:
    directory = tempfile.mkdtemp(prefix="gacc-", dir=os.environ.get("XDG_RUNTIME_DIR") or None)
    at = pathlib.Path(directory)
    (at / "gaccd.yaml").touch()
    settings = {"runtime_dir": at, "listen.socket": at / "gaccd.sock", "state_dir": at / "state", **conf}
    command = [program, "--supervise", "--config", str(at / "gaccd.yaml")]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with open(at / "log", "wb") as out:
        guard = subprocess.Popen(["sh", "-c", GUARD, "gacc-local", directory, *command], stdin=subprocess.PIPE, stdout=out, stderr=out,
                                 start_new_session=True)
    return Local(str(at / "gaccd.sock"), directory, guard)


def _await(started: Local) -> None:
    end = time.monotonic() + START_S
    while not environment.answers(started.endpoint):
        if started._guard.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
            continue
        assert started.directory
        said = pathlib.Path(started.directory, "log").read_text(errors="replace").strip().splitlines()[-3:]
        started.close()
        shutil.rmtree(started.directory, ignore_errors=True)
        raise GaccError("gaccd does not start: " + " / ".join(said), reason="NO_DAEMON", hint="try it by hand: gaccd --supervise --config gaccd.yaml")


def local(*, program: Optional[str] = None, conf: Optional[Mapping[str, Any]] = None, private: bool = False) -> Local:
    """Makes sure that there is a gaccd. Without an endpoint in the environment and without one that answers, it starts one for this process: attach()
    and connect() use it then, and it ends with the last session, with this process, or by close(). Its memory and its state go with it, so give jobs
    a checkpoint.dir of your own if they save.

    program   gaccd; None: the one on PATH
    conf      its configuration, {"engine.threads": 2}: only of one that is started
    private   start one even if another one answers
    """
    global _running
    with _lock:
        if _running:
            return _running
        if not private:
            there = environment.endpoint_or_default()
            if os.environ.get("GACC_ENDPOINT") or environment.answers(there):
                return Local(there)
        started = _start(find_gaccd(program), conf or {})
        _running, environment.private_endpoint = started, started.endpoint
    try:
        _await(started)
    except BaseException:
        started.close()
        raise
    log.info("gaccd in %s", started.directory)
    atexit.register(started.close)
    return started
