# SPDX-License-Identifier: Apache-2.0
"""Ranks that gaccds start for one job on several nodes: what they are given, how they end, and who outlives whom."""
import os
import re
import signal
import subprocess
import time

import pytest

from cli import EXAMPLES, GACCCTL, SGD, Cli
from cluster import Cluster
from harness import GaccError, alive, build_dir, next_line, wait_until
from launching import launched
from test_launch_users import submit_as

LINEAR = str(build_dir() / "bin/linear")
QUICK = {"coll.stall": "1s"}
ALLOW = ["AttemptFailed", "CommunicatorLost", " Ended job=", " RankExited job=", " RankRestarted job=", " LauncherLost job="]


@pytest.fixture
def two():
    with Cluster(2, conf=QUICK, allow=ALLOW) as c:
        yield c
        launchers_end(c)


def launchers_end(c):
    wait_until("the launchers' end", lambda: not any(n.launchers() for n in c.nodes.values()))


def gate(c):
    path = c.coordinator.dir / "gate"
    path.mkdir(exist_ok=True)
    return path


def shell(c, script, ranks=2, **more):
    """Ranks that run a shell script; $GATE is a folder of the test's own."""
    return launched("sh", "-c", script, ranks=ranks, environment={"GATE": gate(c)}, **more)


def wait_state(c, job, *states, timeout=30):
    a = c.coordinator
    wait_until(lambda: f"{states}; it is {a.get_job(job)}\n" + "\n".join(f"== {n.name}\n{n.log()}" for n in c.nodes.values()),
               lambda: a.state(job) in states, timeout)
    return a.get_job(job)


def log_of(c, job, rank, ranks=2):
    j = c.coordinator.get_job(job)
    node = c[next(r.node for r in j.ranks if r.rank == rank)]
    return (node.dir / f"state/logs/{job}-{j.uuid}/worker_{rank}.log").read_text()


def test_environment(two):
    job = two.submit(shell(two, "env", ranks=4))
    wait_state(two, job, "FAILED")
    port = set()
    for rank in range(4):
        node = "ab"[rank // 2]
        env = dict(line.split("=", 1) for line in log_of(two, job, rank).splitlines() if re.match(r"[A-Z_]+=", line))
        port.add(env["MASTER_PORT"])
        want = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": rank // 2,
                "GROUP_WORLD_SIZE": 2, "NODE_RANK": rank // 2, "MASTER_ADDR": "127.0.0.1", "GACC_RANK": rank, "GACC_WORLD_SIZE": 4,
                "GACC_JOB_ID": job, "GACC_ENDPOINT": two[node].endpoint}
        assert {k: env[k] for k in want} == {k: str(v) for k, v in want.items()}
    assert len(port) == 1 and int(port.pop()) > 1023


def test_without_torchs_variables(two):
    """What would start torch.distributed is not there, and a trainer of libgacc finds its place all the same."""
    spec = launched("sh", "-c", f"env; exec {LINEAR}")
    spec["launch_command"]["no_torch_env"] = True
    job = two.submit(spec)
    wait_state(two, job, "COMPLETED")
    for rank in range(2):
        env = dict(line.split("=", 1) for line in log_of(two, job, rank).splitlines() if re.match(r"[A-Z_]+=", line))
        assert (env["GACC_RANK"], env["GACC_WORLD_SIZE"], env["GACC_TORCH_ENV"]) == (str(rank), "2", "0")
        assert not [k for k in env if re.match(r"RANK$|WORLD_SIZE$|LOCAL_|GROUP_|NODE_RANK|MASTER_|TORCHELASTIC", k)]


def test_trains(two):
    job = two.submit(launched(LINEAR))
    j = wait_state(two, job, "COMPLETED")
    wait_until("the exits", lambda: [r.exit_status for r in two.coordinator.get_job(job).ranks] == [0, 0])
    assert j.applied_step == 40 and [r.node for r in j.ranks] == ["a", "b"]


def test_a_job_that_completes_at_once_ends_no_rank(two):
    """Its coordinator may not have heard yet that the other node's ranks run; they exit on their own."""
    for _ in range(3):
        job = two.submit(launched("sh", "-c", f"{LINEAR} && sleep 0.3", steps=1))
        wait_state(two, job, "COMPLETED")
        wait_until(lambda: f"the exits, now {statuses(two, job)}", lambda: statuses(two, job) == [0, 0], 10)


def test_three_nodes():
    """Six ranks on three nodes: what they are given, a restart that each node may get, and an end that reaches all."""
    with Cluster(3, conf=QUICK, allow=ALLOW) as c:
        job = c.submit(launched(LINEAR, ranks=3))
        j = wait_state(c, job, "COMPLETED")
        assert j.applied_step == 40 and [r.node for r in j.ranks] == ["a", "b", "c"]
        job = c.submit(shell(c, f"echo $RANK $GROUP_RANK $GROUP_WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT; {STAY}", ranks=6, max_restarts=2))
        ranks = pids(c, job, 6)
        wait_until("what they print", lambda: all(log_of(c, job, r).strip() for r in range(6)))
        said = [log_of(c, job, r).split() for r in range(6)]
        assert [[int(w) for w in words[:5]] for words in said] == [[r, r // 2, 3, r % 2, 2] for r in range(6)]
        assert len({words[5] for words in said}) == 1
        for i, victim in enumerate((2, 5)):
            os.kill(ranks[victim], signal.SIGKILL)
            wait_until("the restart", lambda: sum(r.restarts for r in c.coordinator.get_job(job).ranks) == i + 1)
        again = pids(c, job, 6)
        assert [r for r in range(6) if again[r] != ranks[r]] == [2, 5]
        os.kill(again[0], signal.SIGKILL)
        assert f"rank 0 (pid {again[0]}) on node a was killed by signal 9" in wait_state(c, job, "FAILED").reason
        wait_until("all exits", lambda: statuses(c, job) == [137, *[143] * 5])
        launchers_end(c)


# ---- how they end ----

WAIT = 'while [ ! -e "$GATE/{0}" ]; do sleep 0.02; done; '
STAY = "exec sleep 1000"  # which ends by SIGTERM


def pids(c, job, ranks=2):
    """Of the ranks, when all run."""
    def all_there():
        found = [r.pid for r in c.coordinator.get_job(job).ranks]
        return found if len(found) == ranks and all(p and alive(p) for p in found) else None
    return wait_until("the ranks' processes", all_there)


def statuses(c, job):
    return [r.exit_status for r in c.coordinator.get_job(job).ranks]


def cancel(c, job):
    c.coordinator.client.jobs.Cancel(job=str(job))
    wait_state(c, job, "CANCELLED")
    wait_until("all exits", lambda: statuses(c, job) == [143] * 2)


def test_a_failing_rank_ends_all_and_is_named(two):
    job = two.submit(shell(two, f"if [ $RANK = 3 ]; then {WAIT.format('go')} echo disk on fire; exit 5; fi; {STAY}", ranks=4, max_restarts=0))
    rank = pids(two, job, 4)
    (gate(two) / "go").touch()
    j = wait_state(two, job, "FAILED")
    assert j.reason == f"rank 3 (pid {rank[3]}) on node b exited with code 5: disk on fire"
    wait_until("all exits", lambda: statuses(two, job) == [143, 143, 143, 5])
    j = two["b"].get_job(job)
    assert (j.root_cause.rank, j.root_cause.exit_status, list(j.root_cause.log_tail)) == (3, 5, ["disk on fire"])
    assert j.root_cause.message == f"rank 3 (pid {rank[3]}) on node b exited with code 5"
    assert not any(alive(p) for p in rank)


def test_what_cannot_run_says_why(two):
    job = two.submit({**launched("no-such-program"), "ranks": 2})
    assert "code 127: cannot run no-such-program: No such file" in wait_state(two, job, "FAILED").reason


def test_restarts_are_shared(two):
    """Three in all, wherever ranks fail: the fourth failure ends the job."""
    job = two.submit(shell(two, f'n=$GACC_RESTART_COUNT; {WAIT.format("go.$RANK.$n")} exit 7', ranks=2, max_restarts=3))
    count = [0, 0]
    pids(two, job)
    for rank in (1, 0, 1):
        (gate(two) / f"go.{rank}.{count[rank]}").touch()
        count[rank] += 1
        wait_until("the restart", lambda: [r.restarts for r in two.coordinator.get_job(job).ranks] == count)
        pids(two, job)
    (gate(two) / f"go.0.{count[0]}").touch()
    j = wait_state(two, job, "FAILED")
    assert re.fullmatch(r"rank 0 \(pid \d+\) on node a exited with code 7", j.reason)
    assert [r.restarts for r in j.ranks] == count == [1, 2]


@pytest.mark.parametrize("grace_ms, status", [(0, 143), (300, 137)])
def test_cancel_reaches_all_nodes(two, grace_ms, status):
    ignore = 'trap "" TERM; ' if grace_ms else ""
    job = two.submit(shell(two, f"{ignore}touch $GATE/up.$RANK; while :; do sleep 0.1; done" if ignore else STAY, ranks=2, grace_ms=600000 if grace_ms else 5000))
    rank = pids(two, job)
    if ignore:
        wait_until("the traps", lambda: len(list(gate(two).glob("up.*"))) == 2)
    two["b"].client.jobs.Cancel(job=str(job), grace_ms=grace_ms)
    wait_state(two, job, "CANCELLED")
    wait_until("all exits", lambda: statuses(two, job) == [status] * 2)
    assert not any(alive(p) for p in rank)


# ---- deaths ----


def test_a_rank_that_is_killed_starts_again(two):
    job = two.submit(shell(two, STAY, max_restarts=1))
    first = pids(two, job)
    os.kill(first[1], signal.SIGKILL)
    wait_until("the restart", lambda: two.coordinator.get_job(job).ranks[1].restarts == 1)
    second = pids(two, job)
    assert second[0] == first[0] and second[1] != first[1]
    os.kill(second[0], signal.SIGKILL)
    assert f"rank 0 (pid {second[0]}) on node a was killed by signal 9" in wait_state(two, job, "FAILED").reason


@pytest.mark.parametrize("node", ["a", "b"])
def test_a_launcher_that_is_killed_costs_no_restart(two, node):
    job = two.submit(shell(two, STAY, max_restarts=0))
    first = pids(two, job)
    (launcher,) = two[node].launchers()
    os.kill(launcher, signal.SIGKILL)
    victim = "ab".index(node)
    wait_until("other ranks", lambda: pids(two, job)[victim] != first[victim])
    assert pids(two, job)[1 - victim] == first[1 - victim]
    cancel(two, job)


@pytest.mark.parametrize("name", ["a", "b"])
def test_ranks_keep_running_while_a_gaccd_is_killed(two, name):
    job = two.submit(shell(two, STAY, max_restarts=1))
    first = pids(two, job)
    two.kill(name)
    wait_until("the job", lambda: two.coordinator.get_job(job).launcher_pid)
    assert pids(two, job) == first
    os.kill(first[1], signal.SIGKILL)
    wait_until("the restart", lambda: two.coordinator.get_job(job).ranks[1].restarts == 1)
    second = pids(two, job)
    assert second[0] == first[0] and second[1] != first[1]
    cancel(two, job)


def test_a_node_finds_its_launcher_without_the_coordinator():
    """What it needs is in its own record of the part. A launcher that nobody finds ends its ranks after launch.orphan_timeout."""
    with Cluster(2, conf=QUICK, node_conf={"b": {"launch.orphan_timeout": "3s"}}, allow=ALLOW) as c:
        job = c.submit(shell(c, STAY, max_restarts=0))
        first = pids(c, job)
        with c.killed("a"):
            c.kill("b")
            time.sleep(5)
            assert alive(first[1])
        wait_until("the coordinator", lambda: c.coordinator.get_job(job).launcher_pid)
        assert pids(c, job) == first
        cancel(c, job)
        launchers_end(c)


def test_a_failure_while_the_coordinator_is_away_is_heard_later(two):
    job = two.submit(shell(two, STAY, max_restarts=0))
    first = pids(two, job)
    with two.killed("a"):
        os.kill(first[1], signal.SIGKILL)
        wait_until("its end", lambda: not alive(first[1]))
    assert f"rank 1 (pid {first[1]}) on node b was killed by signal 9" in wait_state(two, job, "FAILED").reason


def test_restarts_that_a_dead_coordinator_gave_stay_given(two):
    """The second coordinator does not give the job's two restarts again."""
    job = two.submit(shell(two, STAY, max_restarts=2))
    for n in (1, 2):
        os.kill(pids(two, job)[1], signal.SIGKILL)
        wait_until("the restart", lambda: two.coordinator.get_job(job).ranks[1].restarts == n)
        pids(two, job)
        two.kill("a")
        wait_until("the job", lambda: two.coordinator.get_job(job).launcher_pid)
    os.kill(pids(two, job)[0], signal.SIGKILL)
    assert "rank 0" in wait_state(two, job, "FAILED").reason


def test_ranks_that_outlive_their_job_end_with_it(two):
    """The job is cancelled while the node's gaccd is dead: its launcher hears of it when there is one again."""
    job = two.submit(shell(two, STAY))
    first = pids(two, job)
    with two.killed("b"):
        two.coordinator.client.jobs.Cancel(job=str(job))
        wait_state(two, job, "CANCELLED")
        assert alive(first[1])
    wait_until("the rank's end", lambda: not alive(first[1]))
    wait_until("all exits", lambda: statuses(two, job) == [143] * 2)


def test_a_node_that_is_silent_is_named(two):
    job = two.submit(shell(two, STAY))
    first = pids(two, job)
    with two.killed("b"):
        wait_until("the words", lambda: "node b is silent" in two.coordinator.get_job(job).reason)
        assert all(alive(p) for p in first)
    cancel(two, job)


# ---- logs, and gaccctl run ----


def cli(c, node, tmp_path):
    return Cli(tmp_path, c[node].endpoint)


def test_logs_are_read_from_every_node(two, tmp_path):
    job = two.submit(shell(two, f"echo rank $RANK; {WAIT.format('more')} seq 1 40000; echo last $RANK; exit 3", max_restarts=0))
    pids(two, job)
    running = [cli(two, node, tmp_path).start("logs", job, "-f", "--rank", "1") for node in "ab"]
    for r in running:
        assert next_line(r) == "rank 1\n"
    (gate(two) / "more").touch()
    wait_state(two, job, "FAILED")
    wait_until("all exits", lambda: -1 not in statuses(two, job))
    expected = "".join(f"{i}\n" for i in range(1, 40001)) + "last 1\n"
    whole = log_of(two, job, 1)
    assert whole == "rank 1\n" + expected
    for r in running:
        out, err = r.communicate(timeout=30)
        assert (r.returncode, err) == (0, "") and expected.startswith(out)
    for node in "ab":
        one = cli(two, node, tmp_path)
        assert one.run("logs", job, "--rank", "1") == whole
        assert one.run("logs", job, "--rank", "1", "--tail", 2) == "40000\nlast 1\n"
        both = one.run("logs", job, "--tail", 1)
        assert "[rank1] last 1" in both and "[rank0]" in both


def test_logs_of_a_silent_node_say_so(two, tmp_path):
    job = two.submit(shell(two, "echo here; " + STAY))
    pids(two, job)
    with two.killed("b"):
        one = cli(two, "a", tmp_path)
        wait_until("the link's end", lambda: "node b is not linked to the coordinator now" in (one.run("logs", job, "--rank", "1", code=3), one.err)[1])
        assert one.run("logs", job, "--rank", "0") == "here\n"
    cancel(two, job)


def test_logs_are_their_owners(two):
    """Another user may not read them by gaccd; and of a rank that is not there nobody can."""
    job = two.submit(shell(two, "echo here; " + STAY))
    pids(two, job)
    jobs = two["b"].client.jobs
    wait_until("the log", lambda: jobs.ReadLog(job=str(job), rank=1, node="b").data == b"here\n")
    for how, reason in (({"rank": 2, "node": "b"}, "INVALID_ARGUMENT"), ({"rank": 1, "node": "z"}, "INVALID_ARGUMENT")):
        with pytest.raises(GaccError) as e:
            jobs.ReadLog(job=str(job), **how)
        assert e.value.reason == reason
    assert jobs.ReadLog(job=str(job), rank=1, node="a").missing
    cancel(two, job)


def test_run_on_nodes(two, tmp_path):
    one = cli(two, "a", tmp_path)
    out = one.run("run", "--nodes", "a:1,b:1", "-f", EXAMPLES / "linear.yaml", "--tee", "all", "--", LINEAR)
    assert re.search(r"^job \d+ COMPLETED   steps \d+", out, re.M) and "[rank1] " in out
    out = one.run("run", "--nodes", "a,b", "-n", 2, *SGD, "--", "sh", "-c", "test $RANK = 0 && exec sleep 1000; exit 9", code=9)
    assert re.search(r"^job \d+ FAILED .*rank 1 \(pid \d+\) on node b exited with code 9", out, re.M)
    one.run("run", "--nodes", "a:1,b:1", "-n", 3, *SGD, "--", "true", code=2)
    assert "nodes gives" in one.err
    time.sleep(3)  # for so long a gaccd that has just started, as in the test before, waits for its nodes
    one.run("run", "--nodes", "a:1,z:1", *SGD, "--", "true", code=2)
    assert "the cluster has no node z; it has a, b" in one.err


def test_run_on_nodes_that_is_interrupted_cancels(two, tmp_path):
    running = cli(two, "a", tmp_path).start("run", "--nodes", "a:1,b:1", *SGD, "--tee", "1", "--", "sh", "-c", "echo here; exec sleep 1000")
    job = int(next_line(running).split()[1])
    assert any(line == "here\n" for line in iter(lambda: next_line(running), ""))
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert running.returncode == 130 and re.search(rf"cancelling job {job}; once more kills the ranks", err), out + err
    wait_state(two, job, "CANCELLED")
    wait_until("all exits", lambda: statuses(two, job) == [143] * 2)


# ---- users ----

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to have a second user")


def as_user(c, uid, *words):
    return subprocess.run([str(w) for w in (GACCCTL, *words)], env={"GACC_ENDPOINT": c["a"].endpoint, "PATH": "/usr/bin:/bin"}, user=uid,
                          capture_output=True, text=True, timeout=30)


@as_root
def test_ranks_of_another_user():
    """They run as the submitter on each node, and their logs are read for him and for root alone."""
    with Cluster(2, conf={**QUICK, "listen.mode": "0666"}, allow=ALLOW) as c:
        for node in c.nodes.values():
            node.dir.chmod(0o755)
        spec = {"parts": 2, "nodes": "a,b", **shell(c, "id -u; " + STAY)}
        job = int(submit_as(c["a"], "nobody", spec))
        for pid in pids(c, job):
            assert os.stat(f"/proc/{pid}").st_uid == 65534
        for node, rank in (("a", 0), ("b", 1)):
            wait_until("the log", lambda: c["b"].client.jobs.ReadLog(job=str(job), rank=rank, node=node).data == b"65534\n")
        his = as_user(c, 65534, "logs", job, "--rank", "1")
        assert (his.returncode, his.stdout) == (0, "65534\n"), his
        others = as_user(c, 1, "logs", job, "--rank", "1")
        assert others.returncode == 4 and not others.stdout and "that you may see" in others.stderr, others
        cancel(c, job)
        launchers_end(c)


@as_root
def test_a_node_that_may_not_change_user_refuses():
    c = Cluster(2, conf=QUICK, allow=[*ALLOW, " PlacementRefused"])
    b, command = c["b"], c["b"].command
    os.chown(b.dir / "token", 65534, 65534)
    b.dir.chmod(0o755)
    os.chown(b.dir, 65534, 65534)
    b.command = lambda: ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", *command()]
    with c:
        job = c.submit(shell(c, STAY))
        assert "gaccd runs as nobody and may not start processes as root" in wait_state(c, job, "FAILED").reason
        launchers_end(c)


@as_root
def test_a_node_with_a_certificate_launches_nothing_for_root():
    with Cluster(2, tls=True, conf=QUICK, allow=[*ALLOW, " PlacementRefused"]) as c:
        job = c.submit(shell(c, STAY))
        assert "uid 0 is below cluster.relay_min_uid of node b" in wait_state(c, job, "FAILED").reason
        launchers_end(c)


@as_root
def test_a_certificates_relay_is_believed_from_relay_min_uid_on():
    """A node with a certificate says who submits there: nobody's ranks are launched on both nodes, as nobody; daemon's uid is too low to be passed on."""
    with Cluster(2, tls=True, conf={**QUICK, "listen.mode": "0666"}, allow=ALLOW) as c:
        for node in c.nodes.values():
            node.dir.chmod(0o755)
        spec = {"parts": 2, "nodes": "a,b", **shell(c, "id -u; " + STAY)}
        job = int(submit_as(c["b"], "nobody", spec))
        for pid in pids(c, job):
            assert os.stat(f"/proc/{pid}").st_uid == 65534
        assert "uid 1 is below cluster.relay_min_uid" in submit_as(c["b"], "daemon", spec)
        assert [j.id for j in c.coordinator.client.jobs.List().jobs] == [job]
        cancel(c, job)
        launchers_end(c)
