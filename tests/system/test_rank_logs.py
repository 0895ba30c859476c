# SPDX-License-Identifier: Apache-2.0
"""The logs of ranks that gaccd launches: what is printed is there, whoever dies, and no log gets longer than its limit."""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from harness import Daemon, alive, build_dir, children, is_log_writer, killed_after, wait_until
from launching import log_of, open_gate, shell, wait_pids, wait_state

LIMIT = 65536
MARKER = re.compile(r"\[gacc: .*\]")
WAIT = 'while [ ! -e $GATE/go ]; do sleep 0.05; done; '


@pytest.fixture(scope="module")
def d():
    with Daemon(supervise=True, conf={"log.rank_max": LIMIT}) as daemon:
        daemon.allow += [" Ended job=", "RankExited", "LauncherLost", "LogWriter"]
        yield daemon


def folder(d, job):
    return pathlib.Path(d.get_job(job).log_dir)


def logs(d, job, rank=0):
    """The older log, if there is one, and the log; without our own lines."""
    text = ""
    for name in (f"worker_{rank}.log.1", f"worker_{rank}.log"):
        with contextlib.suppress(FileNotFoundError):  # it is being rotated
            text += (folder(d, job) / name).read_text()
    return [line for line in text.splitlines() if not MARKER.fullmatch(line)]


def writer_of(launcher):
    return wait_until("the writer of the logs", lambda: next(filter(is_log_writer, children(launcher)), None))


@pytest.fixture(autouse=True)
def ended(d):
    """Each test's jobs and their launchers are gone when it is over."""
    yield
    (d.dir / "gate/go").unlink(missing_ok=True)
    for job in d.client.jobs.List().jobs:
        d.cancel(job.id, grace_ms=100)
    wait_until("the launchers' end", lambda: not d.launchers())


def test_a_rank_that_prints_for_ever_fills_two_logs_and_no_more(d):
    job = d.submit(shell(d, "exec yes a line of this length", ranks=1))
    wait_pids(d, job, 1)
    path, older = folder(d, job) / "worker_0.log", folder(d, job) / "worker_0.log.1"
    wait_until("the first rotation", older.exists)
    inode, longest, changes = 0, 0, 0
    begin = time.monotonic()
    while changes < 50 and (took := time.monotonic() - begin) < 30 and (took < 3 or changes < 3):
        old = older.stat()
        longest, changes, inode = max(longest, old.st_size), changes + (old.st_ino != inode), old.st_ino
        with contextlib.suppress(FileNotFoundError):  # most of the time, where the rotation takes longer than filling the log
            longest = max(longest, path.stat().st_size)
    assert changes >= 3 and LIMIT - 8192 < longest <= LIMIT, (changes, longest)
    first = older.read_text().splitlines()[0]
    assert re.fullmatch(r"\[gacc: earlier lines were dropped, a log has 65536 bytes and as many in its .1\]", first), first
    assert set(logs(d, job)) == {"a line of this length"}  # lines are whole


def test_all_that_is_printed_is_there_when_the_end_is_told(d):
    for lines in (1, 5000, 14000):  # nothing; less and more than one log
        job = d.submit(shell(d, f"seq 1 {lines}; exit 3", ranks=2))
        wait_state(d, job, "FAILED")
        failed = next(r for r in (0, 1) if f"rank {r} " in d.get_job(job).reason)
        assert logs(d, job, failed) == [str(i + 1) for i in range(lines)]
        printed = logs(d, job, 1 - failed)[:-1]  # it may be ended before it prints, or in the middle of a line
        assert printed == [str(i + 1) for i in range(len(printed))]
        assert str(lines) in d.get_job(job).reason
    

COUNTING = 'i=0; while [ ! -e $GATE/go ]; do i=$((i+1)); echo $i; sleep 0.002; done; echo last $i; exec sleep 1000'


@pytest.mark.parametrize("victim", ["writer", "gaccd"])
def test_no_line_is_lost_when_one_dies(d, victim):
    job = d.submit(shell(d, f'exec 2>&1; {COUNTING}', ranks=1))
    wait_pids(d, job, 1)
    [launcher] = d.launchers()
    wait_until("its first line", lambda: logs(d, job))
    for _ in range(3):
        before = (folder(d, job) / "worker_0.log").stat().st_mtime_ns
        if victim == "writer":
            os.kill(writer_of(launcher), signal.SIGKILL)
        else:
            d.kill_gaccd()
            d.wait_ready()
        wait_until("a further line", lambda: (folder(d, job) / "worker_0.log").stat().st_mtime_ns > before)
    wait_until("some lines more", lambda: len(logs(d, job)) > 20)
    open_gate(d)
    wait_until("the last line", lambda: logs(d, job)[-1:] and logs(d, job)[-1].startswith("last"))
    printed = logs(d, job)
    first = int(printed[0])
    assert printed[:-1] == [str(i) for i in range(first, int(printed[-1].split()[1]) + 1)]
    assert len(printed) > 20 and first == 1


def test_what_was_printed_before_a_launcher_died_is_there(d):
    """The writer goes on to the end of the pipe; then there is another launcher."""
    job = d.submit(shell(d, 'seq 1 3000; touch $GATE/done; exec sleep 1000', ranks=1))
    wait_until("it is printed", (d.dir / "gate/done").exists)
    [launcher] = d.launchers()
    writer = writer_of(launcher)
    os.kill(writer, signal.SIGSTOP)
    (d.dir / "gate/done").unlink()
    os.kill(launcher, signal.SIGKILL)
    os.kill(writer, signal.SIGCONT)
    wait_until("its writer's end", lambda: not alive(writer))
    wait_until("the ranks of the next", (d.dir / "gate/done").exists)
    (d.dir / "gate/done").unlink()
    wait_until("their lines", lambda: logs(d, job)[-1:] == ["3000"] and len(logs(d, job)) >= 6000)
    assert logs(d, job) == [str(i) for i in range(1, 3001)] * 2


def test_gaccctl_follows_a_log_into_the_next(d):
    job = d.submit(shell(d, WAIT + 'seq 1 30000; exec sleep 1000', ranks=1))
    wait_pids(d, job, 1)
    out = subprocess.Popen([build_dir() / "bin/gaccctl", "--endpoint", d.endpoint, "logs", str(job), "-f"], stdout=subprocess.PIPE, text=True)
    try:
        open_gate(d)
        wait_until("the last line in the log", lambda: logs(d, job)[-1:] == ["30000"])
        with killed_after(out):
            for line in out.stdout:
                if line.strip().endswith("30000"):
                    break
            else:
                pytest.fail("it ended")
    finally:
        out.kill()
        out.wait()
        out.stdout.close()


def test_a_fifo_in_the_place_of_a_log_is_no_log(d):
    """To open it would wait for its writer."""
    job = d.submit(shell(d, "echo printed; exec sleep 1000", ranks=1))
    wait_pids(d, job, 1)
    wait_until("its log", lambda: logs(d, job))
    log = pathlib.Path(d.get_job(job).log_dir) / "worker_0.log"
    log.rename(log.with_suffix(".was"))
    os.mkfifo(log)
    out = subprocess.run([build_dir() / "bin/gaccctl", "--endpoint", d.endpoint, "logs", str(job)], capture_output=True, text=True, timeout=20)
    assert "printed" not in out.stdout and str(log.parent) in out.stderr, (out.stdout, out.stderr)


def test_an_older_log_goes_with_the_log_of_an_earlier_job(d):
    where = d.dir / "mine"
    job = d.submit(shell(d, "seq 1 20000; exit 3", ranks=1, log_dir=str(where)))
    wait_state(d, job, "FAILED")
    assert (where / "worker_0.log.1").exists()
    job = d.submit(shell(d, "echo new; exit 3", ranks=1, log_dir=str(where)))
    wait_state(d, job, "FAILED")
    assert log_of(d, job, 0) == "new\n" and not (where / "worker_0.log.1").exists()


def test_an_end_is_told_when_the_last_words_are_written(d):
    job = d.submit(shell(d, WAIT + 'echo last words; exit 3', ranks=1))
    wait_pids(d, job, 1)
    [launcher] = d.launchers()
    writer = writer_of(launcher)
    os.kill(writer, signal.SIGSTOP)
    [rank] = [r.pid for r in d.get_job(job).ranks]
    open_gate(d)
    wait_until("the rank's end", lambda: not alive(rank))
    os.kill(writer, signal.SIGCONT)
    wait_state(d, job, "FAILED")
    assert d.get_job(job).reason.endswith("last words")
