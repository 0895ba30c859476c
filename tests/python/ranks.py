# SPDX-License-Identifier: Apache-2.0
"""Ranks in processes of their own. They are forked from a process that has imported torch and nothing that has threads, so that each starts at once."""
import faulthandler
import multiprocessing
import os
import signal
import sys
import time

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["loops", "accelerate"])

# What a process group of torch belongs to: models, accelerators. It must last as long as the process, which ends by _exit, and the group must not be
# destroyed: its destructor can wait for a thread that waits for the GIL, which the destructor's caller holds (torch 2.13).
KEPT = []


def _run(pipe, env, target, args):
    sys.stdout = open(os.devnull, "w")
    for name in [n for n in os.environ if n.startswith(("GACC_", "RANK", "WORLD_SIZE", "LOCAL_")) and n not in ("GACC_BUILD_DIR", "GACC_PROTOSET")]:
        del os.environ[name]
    os.environ.update(env)
    faulthandler.register(signal.SIGUSR1)
    try:
        pipe.send((True, target(*args)))
    except BaseException as e:
        import traceback
        pipe.send((False, f"{e!r}\n{traceback.format_exc()}"))
        raise


class Rank:
    """target(*args) in a process; `target` is a function of a test's module."""

    def __init__(self, daemon, target, *args, **env):
        self._pipe, theirs = _context.Pipe()
        known = {"GACC_ENDPOINT": daemon.endpoint, "GACC_TEST": str(daemon.dir), **{k: str(v) for k, v in env.items()}}
        self.process = _context.Process(target=_run, args=(theirs, known, target, args))
        self.process.start()
        theirs.close()

    def result(self, timeout=120):
        if not self._pipe.poll(timeout):
            self._end("no result")
        good, value = self._pipe.recv()
        self.process.join(timeout)
        if self.process.is_alive():
            self._end("it has its result, and does not end")
        assert good, value
        return value

    def _end(self, why):
        """Fails. The process says on stderr where it is, and is killed: this one would wait for it at its own end."""
        os.kill(self.process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        self.process.kill()
        raise AssertionError(f"{why} (pid {self.process.pid})")

    def ended(self, timeout=120):
        """The exit code."""
        self.process.join(timeout)
        if self.process.is_alive():
            self._end("it does not end")
        return self.process.exitcode
