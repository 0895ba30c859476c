# SPDX-License-Identifier: Apache-2.0
"""Ranks in processes of their own. They are forked from a process that has imported torch and nothing that has threads, so that each starts at once."""
import multiprocessing
import os
import sys

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["loops", "accelerate"])


def _run(pipe, env, target, args):
    sys.stdout = open(os.devnull, "w")
    for name in [n for n in os.environ if n.startswith(("GACC_", "RANK", "WORLD_SIZE", "LOCAL_")) and n not in ("GACC_BUILD_DIR", "GACC_PROTOSET")]:
        del os.environ[name]
    os.environ.update(env)
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
        assert self._pipe.poll(timeout), "no result"
        good, value = self._pipe.recv()
        self.process.join(timeout)
        assert good, value
        return value

    def ended(self, timeout=120):
        """The exit code."""
        self.process.join(timeout)
        return self.process.exitcode
