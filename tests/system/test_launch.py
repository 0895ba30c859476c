# SPDX-License-Identifier: Apache-2.0
"""launch: daemon. Ranks that gaccd starts: what they are given, how they end, and who outlives whom."""
import contextlib
import os
import pathlib
import re
import signal
import sys
import time

import pytest

from harness import ME, Daemon, GaccError, alive, build_dir, children, is_log_writer, parent_and_state, wait_until
from launching import ALLOWED, gate, launched, log_of, open_gate, shell, wait_pids, wait_state
from test_examples import linear_in_numpy, parameters

LINEAR = str(build_dir() / "bin/linear")
WAIT_FOR = 'while [ ! -e "$GATE/{0}" ]; do sleep 0.02; done; '


@pytest.fixture
def no_launcher_left(daemon):
    yield daemon
    wait_until("the launchers' end", lambda: not daemon.launchers())
    assert not list((daemon.dir / "run").glob("launch-*"))


@pytest.fixture(scope="module")
def expected():
    return linear_in_numpy()


# ---- what a rank is given ----


def test_logs_of_an_earlier_state_stay(no_launcher_left):
    """The journal is gone, or another gaccd had this state_dir: ids begin anew, and what is in logs is another job's."""
    d = no_launcher_left
    old = d.dir / "state/logs/1"
    old.mkdir(parents=True)
    (old / "worker_0.log").write_text("of another job")
    job = d.submit(launched("echo", "mine", ranks=1))
    d.allow += [" Ended job=", "RankExited"]
    wait_until("the job's end", lambda: d.get_job(job).state in (7, 8))
    assert job == 1 and d.get_job(job).log_dir != str(old)
    assert (old / "worker_0.log").read_text() == "of another job" and len(list(old.iterdir())) == 1
    assert log_of(d, job, 0) == "mine\n"


def test_trains_to_the_same_bits(no_launcher_left, expected):
    d = no_launcher_left
    job = d.submit(launched(LINEAR))
    wait_state(d, job, "COMPLETED")
    wait_until("the launcher's end", lambda: not d.launchers() and not d.get_job(job).launcher_pid)
    j = d.get_job(job)
    assert [(r.exit_status, r.restarts) for r in j.ranks] == [(0, 0), (0, 0)]
    assert not j.HasField("root_cause") and j.applied_step == 40
    assert j.log_dir == str(d.dir / f"state/logs/{job}-{j.uuid}")
    for rank in range(2):
        assert parameters(log_of(d, job, rank)) == [expected]
        assert os.stat(f"{j.log_dir}/worker_{rank}.log").st_mode & 0o777 == 0o644


def test_environment_and_where_it_runs(no_launcher_left, monkeypatch):
    d = no_launcher_left
    d.allow.append(" Ended job=.*never attached")
    job = d.submit(shell(d, 'env; echo "pwd=$(pwd) umask=$(umask) args=$*"; readlink /proc/self/fd/0', "a b", "",
                         environment={"LANG": "de", "MINE": "x=y", "GACC_RANK": "77"}, ranks=3, log_dir=f"{d.dir}/l/%j-%x"))
    j = wait_state(d, job, "FAILED")
    assert re.search(r"rank \d \(pid \d+\) ended with code 0 and had never attached", j.reason)
    assert j.log_dir == f"{d.dir}/l/{job}-linear"
    for rank in range(3):
        lines = log_of(d, job, rank).splitlines()
        env = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))
        port = env.pop("MASTER_PORT")
        env = {k: v for k, v in env.items() if k not in ("PWD", "OLDPWD", "SHLVL", "_")}
        assert int(port) > 1023 and env == {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": ME.pw_dir, "USER": ME.pw_name, "SHELL": env["SHELL"],
            "LANG": "de", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "MINE": "x=y", "GATE": str(gate(d)), "GACC_TEST": str(d.dir), "RANK": str(rank), "WORLD_SIZE": "3",
            "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": str(job), "GACC_JOB_ID": str(job),
            "GACC_RANK": str(rank), "GACC_WORLD_SIZE": "3", "GACC_ENDPOINT": d.endpoint, "GACC_MICRO_SIZE": "4",
            "GACC_RESTART_COUNT": "0", "GACC_LOG_DIR": j.log_dir}
        assert "pwd=/ umask=0022 args=a b " in lines and "/dev/null" in lines


@pytest.mark.parametrize("reader", [False, True])
def test_only_a_regular_file_is_a_log(no_launcher_left, reader):
    """To open a FIFO would wait for its reader, and the rank would be STARTING for ever."""
    d = no_launcher_left
    d.allow += ALLOWED
    folder = d.dir / "logs"
    folder.mkdir()
    os.mkfifo(folder / "worker_0.log")
    fd = os.open(folder / "worker_0.log", os.O_RDONLY | os.O_NONBLOCK) if reader else None
    j = wait_state(d, d.submit(shell(d, "echo written", ranks=1, log_dir=str(folder))), "FAILED")
    assert f"cannot write {folder}/worker_0.log: it is not a regular file" in j.reason
    if reader:
        assert os.read(fd, 100) == b""
        os.close(fd)


@pytest.mark.parametrize("change, field, text", [
    ({"launch_command": {}}, "launch_command.command", "must name the program"),
    ({"launch_command": {"command": ["a"], "working_dir": "here"}}, "launch_command.working_dir", "must be absolute"),
    ({"launch_command": {"command": ["a"], "environment": [{"key": "A=B", "value": ""}]}}, "launch_command.environment", "must not contain ="),
    ({"launch_command": {"command": ["a" * 70000]}}, "launch_command", "at most 65536"),
    ({"launch_command": {"command": ["a"], "grace_ms": 10 ** 8}}, "launch_command.grace_ms", "an hour")])
def test_specifications_that_cannot_be(daemon, change, field, text):
    with pytest.raises(GaccError) as e:
        daemon.submit({**launched("a"), **change})
    assert (e.value.reason, e.value.detail.field) == ("INVALID_SPEC", field) and text in e.value.text


# ---- how ranks end ----


def test_the_root_cause_is_the_first_failure(no_launcher_left):
    d = no_launcher_left
    d.allow += [" Ended job=", " RankExited job="]
    die = WAIT_FOR.format("dead") + "sleep 0.2; echo I died, too; exit 1"
    ready = "".join(WAIT_FOR.format(f"up.{r}") for r in (0, 1, 3))
    script = f'trap "" TERM; touch $GATE/up.$RANK; if [ $RANK = 2 ]; then {ready} seq 30; printf "disk \\377on fire" >&2; touch $GATE/dead; exit 3; fi; {die}'
    job = d.submit(shell(d, script, ranks=4, grace_ms=5000))
    j = wait_state(d, job, "FAILED")
    wait_until("all exits", lambda: [r.exit_status for r in d.get_job(job).ranks] == [1, 1, 3, 1])
    j = d.get_job(job)
    c = j.root_cause
    assert (c.rank, c.exit_status, c.pid) == (2, 3, j.ranks[2].pid)
    assert list(c.log_tail) == [str(i) for i in range(12, 31)] + ["disk ?on fire"]
    assert j.reason == f"rank 2 (pid {c.pid}) exited with code 3: disk ?on fire" and c.message == j.reason.rsplit(":", 1)[0]


@pytest.mark.parametrize("pad", range(3))
def test_a_reason_that_is_cut_within_a_character_is_still_text(no_launcher_left, pad):
    d = no_launcher_left
    d.allow += [" Ended job=", " RankExited job="]
    job = d.submit(shell(d, "printf %s \"$T\"; exit 1", ranks=1, environment={"T": "x" * pad + "\u20ac" * 200}))
    assert "\u20ac" * 40 in wait_state(d, job, "FAILED").reason
    assert job in [j.id for j in d.client.jobs.List(all=True).jobs]


def test_what_cannot_run_says_why(no_launcher_left):
    d = no_launcher_left
    d.allow += [" Ended job=", " RankExited job="]
    job = d.submit(launched("no-such-program"))
    assert "code 127: cannot run no-such-program: No such file" in wait_state(d, job, "FAILED").reason
    job = d.submit({**launched("true"), "launch_command": {"command": ["true"], "working_dir": "/nowhere"}})
    assert "code 126: cannot enter the working directory /nowhere" in wait_state(d, job, "FAILED").reason


def test_restarts_until_the_budget_is_used_up(no_launcher_left, expected):
    d = no_launcher_left
    d.allow += [" Rank(Restarted|Lost|Exited) job=", " Ended job="]
    script = 'if [ $RANK = 1 ] && [ $GACC_RESTART_COUNT -lt 2 ]; then kill -9 $$; fi; exec "$0"'
    job = d.submit(launched("sh", "-c", script, LINEAR, max_restarts=2))
    wait_state(d, job, "COMPLETED")
    wait_until("the launcher's end", lambda: not d.launchers())
    assert [r.restarts for r in d.get_job(job).ranks] == [0, 2]
    assert {p for rank in range(2) for p in parameters(log_of(d, job, rank))} == {expected}
    job = d.submit(launched("sh", "-c", script, LINEAR, max_restarts=1))
    j = wait_state(d, job, "FAILED")
    assert "was killed by signal 9 (Killed)" in j.reason and j.root_cause.exit_status == 137


def leaver(*arguments, **spec):
    return launched(sys.executable, pathlib.Path(__file__).parent / "trainers/leaver.py", *arguments, micro_size=1,
                    environment={"GACC_BUILD_DIR": build_dir()}, **spec)


@pytest.mark.parametrize("how", ["inline", "mapped"])
def test_a_rank_that_ends_too_early(no_launcher_left, how):
    """Nobody comes in its place. One that sends its gradients in messages has no lifeline that breaks: its process tells."""
    d = no_launcher_left
    d.allow += [" Ended job=", " RankLost job="]
    job = d.submit(leaver(how, 0))
    j = wait_state(d, job, "FAILED", "COMPLETED")
    assert j.reason == f"rank 0 (pid {j.ranks[0].pid}) ended with code 0 without detaching: the job needs it still"
    assert j.applied_step == 1


def test_a_rank_may_end_when_it_has_given_all(no_launcher_left):
    d = no_launcher_left
    d.allow.append(" RankLost job=")
    job = d.submit(leaver("mapped", 5, steps=1))
    assert wait_state(d, job, "FAILED", "COMPLETED").applied_step == 1


def test_a_log_is_of_one_job_and_of_all_starts_of_its_rank(no_launcher_left):
    d, logs = no_launcher_left, str(no_launcher_left.dir / "same")
    d.allow += [" Rank(Restarted|Exited) job=", " Ended job="]
    for says in "first", "second":
        job = d.submit(shell(d, f"echo {says} $GACC_RESTART_COUNT; exit 1", ranks=1, log_dir=logs, max_restarts=1))
        wait_state(d, job, "FAILED")
        assert log_of(d, job, 0) == f"{says} 0\n{says} 1\n"


def test_cancel_kills_who_ignores_it_and_what_it_has_started(no_launcher_left):
    d = no_launcher_left
    job = d.submit(shell(d, 'trap "" TERM; sleep 1000 & echo $! > $GATE/child.$RANK; while :; do sleep 0.1; done', grace_ms=300))
    pids = wait_pids(d, job)
    wait_until("children", lambda: len([p for p in gate(d).glob("child.*") if p.read_text().endswith("\n")]) == 2)
    pids += [int(p.read_text()) for p in gate(d).glob("child.*")]
    started = time.monotonic()
    d.cancel(job)
    wait_until("their death", lambda: not any(alive(p) for p in pids))
    assert 0.25 < time.monotonic() - started < 9  # not grace's 10 s, if it is not given
    wait_until("exit status", lambda: [r.exit_status for r in d.get_job(job).ranks] == [137, 137])
    assert not d.get_job(job).HasField("root_cause")  # it was us


def test_a_cancel_brings_its_own_grace(no_launcher_left):
    """Another one can make it shorter."""
    d = no_launcher_left
    deaf = 'trap "" TERM; while :; do sleep 0.1; done'
    jobs = [d.submit(shell(d, deaf, ranks=1, grace_ms=3600000)) for _ in range(2)]
    pids = [wait_pids(d, job, 1)[0] for job in jobs]
    d.cancel(jobs[0], grace_ms=100)
    d.cancel(jobs[1])
    wait_until("the first one's death", lambda: not alive(pids[0]))
    assert alive(pids[1])
    d.cancel(jobs[1], grace_ms=100)
    wait_until("the other one's death", lambda: not alive(pids[1]))
    with pytest.raises(GaccError) as e:
        d.client.jobs.Cancel(job=str(jobs[1]), grace_ms=3600001)
    assert e.value.reason == "INVALID_ARGUMENT" and "grace_ms is 3600001" in e.value.text


def test_a_cancel_ends_ranks_that_outlive_their_jobs_completion(no_launcher_left):
    """They hang at exit; otherwise they have 10 minutes."""
    d = no_launcher_left
    job = d.submit(shell(d, f'{LINEAR} && trap "" TERM && while :; do sleep 0.1; done', grace_ms=100, steps=2))
    wait_state(d, job, "COMPLETED")
    time.sleep(0.3)
    [launcher] = d.launchers()
    pids = [p for p in children(launcher) if not is_log_writer(p)]
    assert len(pids) == 2
    d.client.jobs.Cancel(job=str(job))
    wait_until("their death", lambda: not any(alive(p) for p in pids))
    assert d.state(job) == "COMPLETED"


def test_what_a_rank_leaves_behind_goes_with_it(no_launcher_left):
    d = no_launcher_left
    d.allow += [" RankRestarted job="]
    job = d.submit(shell(d, 'sleep 1000 & echo $! > $GATE/child.$GACC_RESTART_COUNT; [ $GACC_RESTART_COUNT = 1 ] && wait; exit 3',
                         ranks=1, max_restarts=1))
    wait_until("the second start", lambda: (gate(d) / "child.1").exists() and (gate(d) / "child.1").read_text())
    first, second = (int((gate(d) / f"child.{i}").read_text()) for i in range(2))
    wait_until("the first child's death", lambda: not alive(first))  # it was sent SIGKILL; a busy machine takes its time
    assert alive(second)
    d.cancel(job)
    wait_until("its death", lambda: not alive(second))


LEAVE = """trap '' TERM HUP; (setsid sh -c 'echo $$ > $GATE/new.$RANK; mv $GATE/new.$RANK $GATE/left.$RANK; while :; do sleep 0.1; done' &); """


@pytest.mark.parametrize("end", ["cancel", "exit"])
def test_nothing_outlives_the_job(no_launcher_left, end):
    """Each rank leaves a process behind that has a session of its own, is nobody's child, and ignores SIGTERM."""
    d = no_launcher_left
    go_on = 'exec sleep 1000' if end == "cancel" else WAIT_FOR.format("go") + 'exec "$1"'
    job = d.submit(shell(d, LEAVE + go_on, LINEAR, grace_ms=200))
    wait_until("what they leave", lambda: len(list(gate(d).glob("left.*"))) == 2)
    left = [int(p.read_text()) for p in gate(d).glob("left.*")]
    assert all(alive(p) and os.getsid(p) == p for p in left) and [parent_and_state(p)[0] for p in left] == d.launchers() * 2
    if end == "cancel":
        d.cancel(job)
    else:
        open_gate(d)
        wait_state(d, job, "COMPLETED")
    wait_until("the launcher's end", lambda: not d.launchers())
    assert not any(alive(p) for p in left)


def test_all_exits_are_told_also_to_a_slow_gaccd(no_launcher_left):
    """More ranks end at one moment than the launcher's socket has room for, while nobody reads it."""
    d = no_launcher_left
    os.mkfifo(gate(d) / "never")
    job = d.submit(shell(d, '[ $RANK = 0 ] || trap "" TERM; touch $GATE/up.$RANK; read x < $GATE/never', ranks=400, grace_ms=700))
    wait_until("the ranks", lambda: len(list(gate(d).glob("up.*"))) == 400, 30)
    pids = wait_pids(d, job, 400)
    d.cancel(job)
    wait_until("the first end", lambda: not alive(pids[0]))
    os.kill(d.pid, signal.SIGSTOP)
    try:
        wait_until("their end", lambda: not any(alive(p) for p in pids))
        time.sleep(0.2)
    finally:
        os.kill(d.pid, signal.SIGCONT)
    wait_until("the launcher's end", lambda: not d.launchers())
    assert [r.exit_status for r in d.get_job(job).ranks] == [143] + [137] * 399


def test_a_cancel_overtakes_a_restart(no_launcher_left):
    d = no_launcher_left
    d.allow += [" RankRestarted job="]
    job = d.submit(shell(d, "echo x >> $GATE/starts; exit 1", ranks=1, max_restarts=1000))
    wait_until("some restarts", lambda: d.get_job(job).ranks[0].restarts >= 2)
    d.cancel(job)
    wait_until("the launcher's end", lambda: not d.launchers())
    n = len((gate(d) / "starts").read_text())
    time.sleep(0.5)
    assert len((gate(d) / "starts").read_text()) == n


# ---- who outlives whom ----


def test_ranks_outlive_gaccd(supervised, expected):
    """gaccd is killed twice, once before and once while they train: the same processes go on, with the same bits."""
    d = supervised
    d.allow.append(" RankLost job=")
    job = d.submit(shell(d, WAIT_FOR.format("go") + 'exec "$1"', LINEAR))
    pids, [launcher] = wait_pids(d, job), d.launchers()
    d.kill_gaccd()
    d.wait_ready()
    assert wait_pids(d, job) == pids and d.launchers() == [launcher]
    wait_until("the launcher's pid", lambda: d.get_job(job).launcher_pid == launcher)
    open_gate(d)
    wait_until("some steps", lambda: d.get_job(job).applied_step >= 2, every=0.001)
    d.kill_gaccd()
    d.wait_ready()
    wait_state(d, job, "COMPLETED")
    wait_until("the launcher's end", lambda: not d.launchers())
    for rank in range(2):
        assert parameters(log_of(d, job, rank)) == [expected]


def test_ranks_begin_again_after_their_launcher(supervised, expected):
    """The launcher is killed: its ranks and what they have started die, and are started again at no cost; the job goes on."""
    d = supervised
    d.allow += [" LauncherLost job=", " RankLost job="]
    script = 'sleep 1000 & echo $! > $GATE/child.$RANK; touch $GATE/up.$GACC_RESTART_COUNT.$RANK; ' + WAIT_FOR.format("go") + 'exec "$1"'
    job = d.submit(shell(d, script, LINEAR))
    pids = wait_pids(d, job)
    wait_until("children", lambda: len(list(gate(d).glob("up.0.*"))) == 2)
    pids += [int(p.read_text()) for p in gate(d).glob("child.*")]
    for restart in (1, 2):
        [launcher] = d.launchers()
        os.kill(launcher, signal.SIGKILL)
        wait_until("their death", lambda: not any(alive(p) for p in pids))
        wait_until("new ones", lambda: len(list(gate(d).glob(f"up.{restart}.*"))) == 2)
        pids = wait_pids(d, job) + [int(p.read_text()) for p in gate(d).glob("child.*")]
        assert [r.restarts for r in d.get_job(job).ranks] == [restart] * 2
    open_gate(d)
    wait_state(d, job, "COMPLETED")
    wait_until("the launcher's end", lambda: not d.launchers())
    assert not any(alive(p) for p in pids)
    for rank in range(2):
        assert parameters(log_of(d, job, rank)) == [expected]


@pytest.mark.parametrize("also_gaccd", [False, True])
def test_a_launcher_that_dies_while_it_stops_its_ranks(no_launcher_left, also_gaccd):
    """The job is over; another launcher ends what the ranks have started, and takes the dead one's files away."""
    d = no_launcher_left
    d.allow += [" LauncherLost job="]
    job = d.submit(shell(d, 'trap "" TERM; sleep 1000 & echo $! > $GATE/child.$RANK; trap "touch $GATE/told.$RANK" TERM; touch $GATE/up.$RANK; while :; do sleep 0.1; done',
                         grace_ms=60000))
    wait_until("the ranks", lambda: len(list(gate(d).glob("up.*"))) == 2)
    pids = wait_pids(d, job) + [int(p.read_text()) for p in gate(d).glob("child.*")]
    d.cancel(job)
    wait_until("SIGTERM", lambda: len(list(gate(d).glob("told.*"))) == 2)
    [launcher] = d.launchers()
    if also_gaccd:
        d.kill_gaccd()
    os.kill(launcher, signal.SIGKILL)
    if also_gaccd:
        d.start()
    wait_until("their death", lambda: not any(alive(p) for p in pids))
    assert d.state(job) == "CANCELLED"


def test_a_launcher_that_cannot_live_fails_the_job(daemon):
    d = daemon
    d.allow += [" LauncherLost job=", " Ended job="]
    job = d.submit(launched("sleep", 100))

    def failed():
        for launcher in d.launchers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(launcher, signal.SIGKILL)
        return d.state(job) == "FAILED"

    wait_until("its failure", failed, every=0.005)
    assert "launchers in a row have died" in wait_state(d, job, "FAILED").reason


@pytest.fixture
def short(request):
    """A gaccd whose launchers do not wait for its successor."""
    with Daemon(conf={"launch.orphan_timeout": "2s"}, allow=[" Ended job=", " RankExited job="]) as d:
        yield d


def test_orphans_end(short):
    """gaccd is gone for good: the ranks are stopped after launch.orphan_timeout. The next gaccd starts them anew."""
    d = short
    job = d.submit(shell(d, "echo up; touch $GATE/up.$RANK; sleep 1000"))
    pids = wait_pids(d, job)
    killed = time.monotonic()
    d.kill_gaccd()
    time.sleep(0.5)
    assert all(alive(p) for p in pids) or time.monotonic() - killed > 1.5
    wait_until("the ranks' end", lambda: not any(alive(p) for p in pids))
    wait_until("the launcher's end", lambda: not d.launchers())
    assert not list((d.dir / "run").glob("launch-*"))
    d.start()
    assert d.state(job) in ("PENDING", "STARTING")
    wait_until("new ranks", lambda: log_of(d, job, 0) == "up\nup\n")
    d.cancel(job)


def test_a_launcher_with_nothing_left_to_do_ends_too(short):
    """Its ranks fail while gaccd is away: it waits to tell of it, but not for ever."""
    d = short
    job = d.submit(shell(d, WAIT_FOR.format("go") + "exit 3"))
    wait_pids(d, job)
    d.kill_gaccd()
    open_gate(d)
    wait_until("the launcher's end", lambda: not d.launchers())
    d.start()
    assert "exited with code 3" in wait_state(d, job, "FAILED").reason  # again, by new ranks: the old ones are forgotten


def test_a_failure_while_gaccd_was_away_is_told(daemon):
    d = daemon
    d.allow += [" Ended job="]
    job = d.submit(shell(d, WAIT_FOR.format("go") + "exit 3"))
    pids = wait_pids(d, job)
    d.kill_gaccd()
    open_gate(d)
    wait_until("the ranks' end", lambda: not any(alive(p) for p in pids))
    d.start()
    j = wait_state(d, job, "FAILED")
    assert "exited with code 3" in j.reason and j.root_cause.pid in pids


@pytest.mark.parametrize("restarts", [0, 1])
def test_how_ranks_ended_is_known_after_a_restart_of_gaccd(no_launcher_left, restarts):
    d = no_launcher_left
    d.allow += [" Ended job=", " RankExited job=", " RankRestarted job="]
    others = "".join(WAIT_FOR.format(f"up.{r}") for r in (0, 2))
    job = d.submit(shell(d, f'if [ $RANK = 1 ]; then {others} echo I did it; exit 3; fi; trap "exit 7" TERM; touch $GATE/up.$RANK; while :; do sleep 0.05; done',
                         ranks=3, max_restarts=restarts))
    wait_state(d, job, "FAILED")
    wait_until("the launcher's end", lambda: not d.launchers() and not d.get_job(job).launcher_pid)
    was = d.get_job(job)
    assert [r.exit_status for r in was.ranks] == [7, 3, 7] and was.ranks[1].restarts == restarts
    d.stop()
    d.start()
    for _ in range(2):
        j = d.get_job(job)
        assert [(r.rank, r.node, r.pid, r.exit_status, r.restarts) for r in j.ranks] == \
            [(r.rank, r.node, r.pid, r.exit_status, r.restarts) for r in was.ranks]
        assert j.root_cause == was.root_cause and list(j.root_cause.log_tail)[-1] == "I did it" and j.reason == was.reason
        assert j.log_dir == was.log_dir
        d.stop()
        d.start()
