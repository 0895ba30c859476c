# SPDX-License-Identifier: Apache-2.0
"""Every failpoint (proto/failpoint.h) with every action, in a build with -DGACC_FAILPOINTS: four ranks train while the point fires once in
the middle of it. The job must come through with the bits of a run without faults, and the point must have fired. Points of a job of several
parts fire in one of two parts.

Several daemons work at a time, each on one case after the other; a case that failed costs its daemon.
"""
import concurrent.futures
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import zlib

import pytest

from failpoint_job import PARTS, RANKS, STEPS, WAYS, Control, Launched, Trainers, check_ledger, exact_result, read_manifest, spec
from harness import Client, Daemon, GaccError, alive, children, parent_and_state, wait_until

pytestmark = pytest.mark.failpoints

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKERS = 6
SLEEP_MS, SLOW_PASS_MS, STOPPED_S, CASE_S = 60, 10, 0.05, 40

# What a fault may leave in the log: the death and the return of what the point killed, and what was told about it.
EXPECTED = [r" RankLost ", r" RankExited ", r" LauncherLost ", r" LauncherStart ", r" EngineLost ", r" EngineExited ", r"was killed by signal 9; starting it again",
            r"exited with 74; starting it again", r"the journal is broken", r"cannot start", r" NotStored ", r" EngineNotStarted ",
            r" AllocationFailed .*out of memory", r" AttemptFailed ", r" CommunicatorLost ",
            r"attach socket: .*: closed", r" Checkpoint(Failed|NotDeleted) (?!.*File exists)", r"checkpoint: .*: Input/output error", r" RestoreFailed ", r" (AllocationFailed|Ended) .*restore_from.*nput/output error"]

# Points that a job passes only when something else happens, too.
AT_RESTART = {"coord_term_before", "coord_term_after", "gaccd_restore_before", "gaccd_restore_after", "gaccd_adopt_before"}
AT_STOP = {"gaccd_drain", "gaccd_drained"}
AT_OPERATORS_CALL = {"coord_hold_before", "coord_hold_after", "coord_update_before", "coord_update_after"}
AT_TICK = {"gaccd_tick"}
AFTER_THE_END = {"coord_exits_before", "coord_exits_after"}  # of job and launcher
AT_CANCEL = {"launcher_stop_before"}  # of a job that gaccd has launched
LAUNCHED = {"gaccd_launcher_before", "gaccd_launcher_started", "coord_exits_before", "coord_exits_after"}  # and all of the process "launcher"
SAVING, LOADING = "_save_", "_load_"  # in the names of points of jobs that are saved, and of those that begin with what was saved
TICK_MS = 100
WITH_CLIENT_OPTIMIZER = {"client_apply_ack_before"}
# An engine dies before it votes, when the one of the other part is about to: that attempt fails.
AT_FAILED_ATTEMPT = {"engine_vote_withdrawn"}
SECOND_OF_A_WINDOW = 3  # passes of engine_prepared_before by two parts, before the one that dies

# Where an error does not pass unnoticed: what the trainers hear before they succeed at a second try ...
HEARD = {("gaccd_allocate_before", "error"): "register tensors.*out of memory"}
# ... or who submits the job ...
REFUSED = {("gaccd_load_manifest_before", "error"): "IO_ERROR"}
# ... or how the job ends.
ENDS = {("engine_load_file_before", "error"): ("FAILED", r"restore_from .*: reading model\.safetensors: Input/output error")}
# A job that has no checkpoint then; any other error costs it one.
NOT_SAVED = {("gaccd_save_sweep_before", "error")}
HALF_DELETED = {("gaccd_save_delete_files", "error")}  # until the next one is saved


def table():
    """(name, process, error, of parts) of the points, as the header has them: no daemon is needed to collect the tests."""
    text = (ROOT / "proto/failpoint.h").read_text()
    rows = re.findall(r'^\t(PLAIN|ERROR)\((\w+), (\w+), (?:\w+, )?"(.*)"\)', text, re.M)
    assert len(rows) >= 40
    return [(name, process, kind == "ERROR", where.startswith("parts: ")) for kind, process, name, where in rows]


POINTS = table()
PROCESS = {name: process for name, process, _, _ in POINTS}
WITH_PARTS = {name for name, _, _, of_parts in POINTS if of_parts}
CASES = [(name, action) for name, _, error, _ in POINTS
         for action in ("crash", "error", "sleep", "stop") if (action != "error" or error)]


class Worker:
    """One daemon, and the cases that are run on it."""

    def __init__(self):
        self.daemon = Daemon(supervise=True, allow=list(EXPECTED)).start()
        self.control = Control(self.daemon.dir / "run/failpoints.sock")
        self.pool = concurrent.futures.ThreadPoolExecutor(1)

    def stop(self):
        self.control.close()
        self.daemon.__exit__(None, None, None)

    def throw_away(self):
        self.control.close()
        self.daemon.test_failed = True
        self.daemon.__exit__(AssertionError, None, None)

    def let_go_on(self, pids=()):
        """What has stopped of gaccd, its children and these."""
        gaccd = self.daemon.pid
        for pid in [*pids, *([gaccd] + children(gaccd) if gaccd else [])]:
            if parent_and_state(pid)[1] == "T":
                time.sleep(STOPPED_S)
                with contextlib.suppress(ProcessLookupError):  # gaccd may have lost its patience
                    os.kill(pid, signal.SIGCONT)

    def submit(self, action, job):
        submitted = self.pool.submit(self.daemon.submit, job)
        while action == "stop" and not submitted.done():
            self.let_go_on()
            time.sleep(0.01)
        return submitted.result()

    def wait(self, trainers, action, retry=None):
        """Until the trainers are done; meanwhile lets stopped processes go on."""
        end = time.monotonic() + CASE_S
        while not trainers.poll(retry):
            assert time.monotonic() < end, f"not done after {CASE_S} s: {self.control.hits() if self.daemon.pid else ''}\n{trainers.heard()}"
            if action == "stop":
                self.let_go_on(trainers.pids())
            time.sleep(0.01)

    def train(self, point=None, action=None, skip=0, crash_skip=0, checkpoint=None, by_rpc=WAYS[0], parts=1):
        """One job, with the point armed; `crash_skip`: answers of the engine after which gaccd dies, for points of its start, or sleeps
        over a tick; `checkpoint`: what points of loading begin with; `by_rpc`: ranks without mailboxes; `parts`: of the job. Returns the
        ranks' results."""
        process = PROCESS.get(point)
        self.control.do("disarm all")
        if point:
            self.control.do(f"arm {point} {action} {SLEEP_MS if action == 'sleep' else ''} skip {skip} count 1")
        if point in AT_TICK:  # a job may be over before the first
            self.control.do(f"arm gaccd_answer_before sleep {2 * TICK_MS} skip {crash_skip}")
        if point in AT_RESTART:
            self.control.do(f"arm gaccd_answer_before crash skip {crash_skip}")
        if point in AT_FAILED_ATTEMPT:
            self.control.do(f"arm engine_prepared_before crash skip {SECOND_OF_A_WINDOW}")
        client_optimizer, saves, loads = point in WITH_CLIENT_OPTIMIZER, SAVING in str(point), LOADING in str(point)
        launched = process == "launcher" or point in LAUNCHED
        out = self.daemon.dir / f"launched.{time.monotonic_ns()}"
        job_spec = {**spec(client_optimizer, parts), **(Launched.spec(self.daemon, out, by_rpc) if launched else {}),
                    **({"checkpoint": {"every_steps": 1, "keep": 1, "at_end": True}} if saves else {}),
                    **({"restore_from": str(checkpoint)} if loads else {})}
        if (point, action) in REFUSED:
            with pytest.raises(GaccError, match=REFUSED[point, action]):
                self.submit(action, job_spec)
        job = self.submit(action, job_spec)
        operator = self.pool.submit(self.operate, job) if point is None or point in AT_OPERATORS_CALL else None
        trainers = (Launched(self.daemon, job, out) if launched else
                    Trainers(self.daemon, job, client_optimizer, process == "client" or point is None, by_rpc, parts, states=saves))
        try:
            self.wait(trainers, action, HEARD.get((point, action)) or ENDS.get((point, action), (None, None))[1])
            if operator:
                operator.result()
            self.check(job, trainers, point, action)
            if point in AFTER_THE_END:
                self.wait_fired(point, action)
            if saves:
                self.check_saved(job, (point, action))
        finally:
            trainers.kill()
        return trainers.results()

    def checkpoints(self, job):
        return [pathlib.Path(k.path) for k in self.daemon.client.jobs.ListCheckpoints(job=str(job)).checkpoints if k.state == 2]

    def check_saved(self, job, case):
        """The end is saved; what is listed is whole, but for one that could be deleted in part only; nothing half-written is left."""
        found = self.checkpoints(job)
        if case in NOT_SAVED:
            assert not found
            return
        steps = [read_manifest(path)["applied_step"] for path in (found[-1:] if case in HALF_DELETED else found)]
        assert steps[-1] == STEPS and steps == sorted(steps)
        assert not list(found[0].parent.glob(".*")), list(found[0].parent.iterdir())

    def make_checkpoint(self):
        """Inside a job's second or third window, in the middle of which it then lies: with passes that leave it the time."""
        self.control.do("disarm all")
        self.control.do(f"arm engine_pass_before sleep {SLOW_PASS_MS} count 1000")
        job = self.submit(None, {**spec(False), "checkpoint": {"every_steps": 1}})
        self.wait(Trainers(self.daemon, job), None)
        self.control.do("disarm all")
        return next(path for path in self.checkpoints(job) if read_manifest(path)["applied_step"] < STEPS)

    def operate(self, job):
        """What changes nothing in the end. It has a connection of its own: gaccd may be stopped in the middle."""
        with contextlib.closing(Client(self.daemon.endpoint)) as client:
            client.jobs.Pause(job=str(job), reason="a test")
            client.jobs.Resume(job=str(job))
            client.jobs.Update(job=str(job), values={"lr": 1.0})

    def check(self, job, trainers, point, action):
        state, reason = ENDS.get((point, action), ("COMPLETED", ""))
        end = self.pool.submit(wait_until, "the job's end",
                               lambda: self.daemon.state(job) in (state, "COMPLETED", "FAILED", "NODE_FAIL"), 20)
        while action == "stop" and not end.done():
            self.let_go_on()
            time.sleep(0.01)
        end.result()
        assert self.daemon.state(job) == state
        assert re.search(reason, self.daemon.get_job(job).reason)
        if (point, action) in HEARD:
            assert re.search(HEARD[point, action], trainers.heard()), trainers.heard()
        elif action == "crash" and PROCESS[point] == "client":
            assert -signal.SIGKILL in trainers.codes
        if action == "error" and point in WITH_PARTS:  # it is said again, before an attempt is given up
            assert not [line for line in self.daemon.events("AttemptFailed") if f" job={job} " in line]
        for data in trainers.results():
            check_ledger(data, point in WITH_CLIENT_OPTIMIZER)
        assert trainers.results() or state != "COMPLETED"

    def wait_fired(self, point, action):
        fired = self.pool.submit(wait_until, f"{point} to fire", lambda: self.control.hits()[point][1])
        while action == "stop" and not fired.done():
            self.let_go_on()
            time.sleep(0.01)
        fired.result()
        if action == "stop":  # it may have been heard of before the process stopped
            time.sleep(STOPPED_S)
            self.let_go_on()

    def at_stop(self, point, action):
        """The job is over, gaccd is told to stop; whatever happens then, the next one knows how the job ended."""
        job = self.daemon.submit(spec(False))
        trainers = Trainers(self.daemon, job)
        self.wait(trainers, None)
        wait_until("the job's end", lambda: self.daemon.state(job) == "COMPLETED")
        self.control.do("disarm all")
        self.control.do(f"arm {point} {action} {SLEEP_MS if action == 'sleep' else ''}")
        self.control.close()
        gaccd = self.daemon.pid
        self.daemon.client.close()
        self.daemon._client = None
        self.daemon.process.terminate()
        if action == "stop":
            wait_until("the stop", lambda: parent_and_state(gaccd)[1] == "T")
            os.kill(gaccd, signal.SIGCONT)
        code = self.daemon.process.wait(20)
        assert code == (128 + signal.SIGKILL if action == "crash" else 0)
        self.daemon.process = None
        self.daemon.start()
        assert self.daemon.state(job) == "COMPLETED"
        return []


    def at_cancel(self, point, action):
        """Of a job whose ranks have children; nothing of it is left, neither a process nor a file of its launcher."""
        script = "sleep 1000 & echo $! > $0.$RANK.new; mv $0.$RANK.new $0.$RANK; wait"
        out = self.daemon.dir / f"child.{time.monotonic_ns()}"
        command = {"command": ["sh", "-c", script, str(out)], "grace_ms": 500,
                   "environment": [{"key": "GACC_TEST", "value": str(self.daemon.dir)}]}
        job = self.daemon.submit({**spec(False), "launch": "daemon", "launch_command": command})
        wait_until("the children", lambda: len(list(out.parent.glob(f"{out.name}.?"))) == RANKS)
        pids = [r.pid for r in self.daemon.get_job(job).ranks] + [int(p.read_text()) for p in out.parent.glob(f"{out.name}.?")]
        self.control.do("disarm all")
        self.control.do(f"arm {point} {action} {SLEEP_MS if action == 'sleep' else ''}")
        self.daemon.cancel(job)

        def over():
            if action == "stop":
                self.let_go_on(self.daemon.launchers())
            return (self.daemon.state(job) == "CANCELLED" and not any(alive(p) for p in pids) and
                    not list((self.daemon.dir / "run").glob("launch-*")))
        wait_until("its end", over)
        return []


class Runner:
    """Runs the cases that were selected, WORKERS at a time."""

    new_worker = Worker

    def __init__(self, cases):
        self.free, self.lock = [], threading.Lock()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gacc-"))
        self.pool = concurrent.futures.ThreadPoolExecutor(WORKERS)
        self.reference = self.pool.submit(self.with_worker, self.without_faults)
        self.case = {case: self.pool.submit(self.with_worker, self.run, *case) for case in cases}

    def with_worker(self, what, *arguments):
        with self.lock:
            worker = self.free.pop() if self.free else None
        worker = worker or self.new_worker()
        try:
            result = what(worker, *arguments)
        except BaseException:
            worker.throw_away()
            raise
        with self.lock:
            self.free.append(worker)
        return result

    def without_faults(self, worker):
        """(parameters, how often each point is passed, a checkpoint from the middle of the job); by the job's number of parts: the first two"""
        results = worker.train()
        assert len(results) == RANKS and len(set(results)) == 1
        hits = {name: passed for name, (passed, _) in worker.control.hits().items()}
        others = [worker.train(by_rpc=by_rpc) for by_rpc in WAYS[1:]]
        assert all(set(r) == set(results) for r in others), "other bits by RPC than through mailboxes"
        of_parts = worker.train(parts=PARTS)
        assert len(of_parts) == RANKS and set(of_parts) == {exact_result(PARTS)} and set(results) == {exact_result(1)}
        hits_of_parts = {name: passed for name, (passed, _) in worker.control.hits().items()}
        return {1: results[0], PARTS: of_parts[0]}, {1: hits, PARTS: hits_of_parts}, shutil.copytree(worker.make_checkpoint(), self.folder / "checkpoint")

    @staticmethod
    def way(point, action):
        """Half of the cases have the ranks that use mailboxes changed with those that do not; not the victim of a point of a mailbox."""
        return WAYS[0 if "client_box" in point else zlib.crc32(f"{point} {action}".encode()) & 1]

    @staticmethod
    def skip(point, n):
        """Of a job's n passes, those before it fires: in the middle, but not so late that a job with larger batches has fewer."""
        if point in AT_RESTART:
            return n
        return 0 if point in WITH_CLIENT_OPTIMIZER | AT_TICK else n // 4 if n > 200 else min(n // 4, 8)

    def run(self, worker, point, action):
        by_parts, passed_by_parts, checkpoint = self.reference.result()
        parts = PARTS if point in WITH_PARTS else 1
        params, passed = by_parts[parts], passed_by_parts[parts]
        if point in AT_STOP:
            results = worker.at_stop(point, action)
        elif point in AT_CANCEL:
            results = worker.at_cancel(point, action)
        else:
            results = worker.train(point, action, self.skip(point, passed[point]), passed["gaccd_answer_before"] // 2,
                                   checkpoint, self.way(point, action), parts)
        fired = worker.control.hits()[point][1]
        assert fired >= 1, f"{point} was never hit"
        if point not in WITH_CLIENT_OPTIMIZER:
            assert all(r == params for r in results), "other bits than without faults"

    def stop(self):
        self.pool.shutdown(cancel_futures=True)
        for worker in self.free:
            worker.stop()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module")
def runner(request):
    wanted = [(item.callspec.params["point"], item.callspec.params["action"]) for item in request.session.items
              if item.module is request.module and item.originalname == "test_point"]
    r = Runner(wanted)
    yield r
    r.stop()


@pytest.mark.parametrize("point,action", CASES, ids=lambda v: v)
def test_point(runner, point, action):
    runner.case[point, action].result()


def test_all_points_are_passed_by_a_job(runner):
    """But for those of the lists above: whoever adds a point sees here that nothing leads to it. The job may be over before a tick."""
    _, by_parts, _ = runner.reference.result()
    passed, of_parts = by_parts[1], by_parts[PARTS]
    assert {name for name in WITH_PARTS if passed[name]} == set()
    assert {name for name in WITH_PARTS if not of_parts[name]} == AT_FAILED_ATTEMPT | {name for name in WITH_PARTS if SAVING in name}
    never = {name for name, n in passed.items() if n == 0}
    launched = LAUNCHED | {name for name, process in PROCESS.items() if process == "launcher"}
    saved = {name for name in PROCESS if SAVING in name or LOADING in name}
    assert never - AT_RESTART - AT_TICK == AT_STOP | WITH_CLIENT_OPTIMIZER | WITH_PARTS | launched | saved - {"gaccd_save_sweep_before"}


@pytest.fixture(scope="module")
def control():
    with Daemon() as d:
        c = Control(d.dir / "run/failpoints.sock")
        yield c
        c.close()


@pytest.mark.parametrize("line,answer", [
    ("", 'error: no command ""'),
    ("arm", 'error: no failpoint ""'),
    ("arm engine_pass crash", 'error: no failpoint "engine_pass": "list" shows all'),
    ("arm engine_pass_filled explode", 'error: no action "explode": crash, error, sleep or stop'),
    ("arm engine_pass_filled error", "error: nothing can fail at engine_pass_filled: crash, sleep or stop"),
    ("arm engine_pass_filled crash skip", 'error: skip needs a number, not ""'),
    ("arm engine_pass_filled crash count -1", 'error: count needs a number, not "-1"'),
    ("arm engine_pass_filled crash 7", 'error: unexpected "7"'),
    ("disarm nothing", 'error: no failpoint "nothing"'),
])
def test_wrong_commands_are_refused(control, line, answer):
    last = control.say(line)[-1]
    assert last.startswith(answer), last


def test_list_shows_what_is_armed(control):
    control.do("arm engine_pass_filled sleep 5 skip 3 count 2")
    rows = control.do("list")
    assert len(rows) == len(POINTS)
    row = next(r for r in rows if r.startswith("engine_pass_filled "))
    assert row.startswith("engine_pass_filled engine - sleep skip 3 count 2: ")
    control.do("disarm all")
    assert all(" none skip" in r for r in control.do("list"))


def test_only_root_and_the_daemons_user_may_arm(control):
    assert os.stat(control.path).st_mode & 0o777 == 0o600
    if os.getuid() == 0:
        code = ("import os, socket, sys\nos.setuid(65534)\ns = socket.socket(socket.AF_UNIX)\n"
                "try: s.connect(sys.argv[1])\nexcept PermissionError: sys.exit(7)")
        assert subprocess.run(["/usr/bin/python3", "-c", code, control.path]).returncode == 7


@pytest.mark.parametrize("point,holds", [("coord_end_before", False), ("coord_end_after", True)])
def test_a_cancel_is_answered_when_it_is_durable(point, holds):
    """gaccd dies around the commit of the end: nobody was told that the job is cancelled, and a job whose end was not written goes on."""
    with Daemon(supervise=True, allow=EXPECTED) as d:
        job = d.submit(spec(False))
        control = Control(d.dir / "run/failpoints.sock")
        control.do(f"arm {point} crash")
        with pytest.raises(GaccError) as e:
            d.client.jobs.Cancel(job=str(job), retry=False)
        assert e.value.is_outage
        d.killed += 1
        wait_until("gaccd again", lambda: control.say("list"))
        control.close()
        assert (d.state(job) == "CANCELLED") == holds
        d.cancel(job)


def test_memory_and_disks_of_some_hold_up_nobody_else():
    """While gaccd takes memory for two jobs, and reads what two others restore from a disk that does not answer, it takes a third one's job."""
    slow_s = 6
    tensor = {"tensors": [{"name": "w", "dtype": 1, "shape": [1]}], "init": [{"pattern": "*", "type": 1}]}
    with Daemon(allow=["RestoreFailed", "AllocationFailed", r"^.* Ended job="]) as d, concurrent.futures.ThreadPoolExecutor(4) as pool:
        control = Control(d.dir / "run/failpoints.sock")
        for point in ("gaccd_allocate_before", "gaccd_load_manifest_before", "gaccd_save_sweep_before"):
            control.do(f"arm {point} sleep {slow_s * 1000} count 2")
        some = [pool.submit(d.submit, {**spec(False), "name": f"some{i}", **tensor, **more})
                for i, more in enumerate([{}, {}, {"restore_from": "/none"}, {"restore_from": "/none"}])]
        wait_until("memory is taken, a disk is read", lambda: sum(hits[0] for name, hits in control.hits().items()
                                                                  if name in ("gaccd_allocate_before", "gaccd_load_manifest_before")) >= 2)
        start = time.monotonic()
        job = d.submit({**spec(False), "labels": [{"key": "k" * 1000, "value": "v" * 8000}] * 10})
        assert d.get_job(job).spec.labels[0].value == "v" * 8000
        assert time.monotonic() - start < slow_s / 2, "others' memory and disks hold it up"
        concurrent.futures.wait(some)
        control.close()
        for j in d.client.jobs.List(all=False).jobs:
            d.cancel(j.id)


def test_a_step_that_is_not_applied_in_time_holds_the_job():
    """An engine sleeps with a durable outcome for longer than stall_abort. The job is paused, also at the next gaccd, and goes on when it is resumed."""
    with Daemon(supervise=True, allow=EXPECTED + [" Held ", " WindowStuck ", " RankLate "]) as d:
        control = Control(d.dir / "run/failpoints.sock")
        control.do("arm engine_commit_recorded sleep 3500 skip 1 count 1")
        job = d.submit({**spec(False), "stall_warn_ms": 300, "stall_abort_ms": 2000})
        trainers = Trainers(d, job)
        try:
            wait_until("the hold", lambda: d.state(job) == "PAUSED")
            assert re.search("held: window 1 has its outcome, but part 0 has not applied it", d.get_job(job).reason)
            d.kill_gaccd()
            d.wait_ready()
            assert d.state(job) == "PAUSED" and "held: window 1" in d.get_job(job).reason
            wait_until("the step is applied", lambda: d.get_job(job).applied_step == 2 and d.get_job(job).window == 2)
            assert d.state(job) == "PAUSED" and not d.events("Ended")
            d.client.jobs.Resume(job=str(job))
            wait_until("the trainers", lambda: trainers.poll(None))
            wait_until("the job's end", lambda: d.state(job) == "COMPLETED")
            assert set(trainers.results()) == {exact_result(1)}
        finally:
            trainers.kill()
            control.close()
