# SPDX-License-Identifier: Apache-2.0
"""gaccctl run: ranks that crash, end early or are interrupted."""
import pathlib
import re
import signal
import sys
import time

import pytest

from cli import EXAMPLES, LINEAR, SGD, Cli, cluster  # noqa: F401 (fixture)
from harness import Daemon, build_dir, next_line



def test_run_does_not_restart_ranks_of_a_cancelled_job(cluster):
    running = cluster.start("run", "-n", 2, "--max-restarts", 50, "--grace", "5s", "-f", EXAMPLES / "linear.yaml", "--set",
                            "steps=0", "--name", "endless", "--", LINEAR)
    job = int(next_line(running).split()[1])
    cluster.run("wait", job, "--for", "step=5", "--timeout", "30s")
    cluster.run("cancel", job)
    out, err = running.communicate(timeout=30)
    assert "starting it again" not in out + err
    assert re.search(rf"^job {job} CANCELLED ", out, re.M), out + err
    assert running.returncode != 0


def test_two_gaccds_do_not_share_a_log_folder(cluster, tmp_path):
    """Their jobs have the same numbers and their user the same home: by default the folders are still two."""
    with Daemon() as other:
        dirs = []
        for endpoint in (cluster.endpoint, other.endpoint):
            one = Cli(tmp_path, endpoint)
            out = one.run("run", "-f", EXAMPLES / "linear.yaml", "-n", 1, "--set", "steps=1", "--", "sh", "-c",
                          f"echo by {endpoint}; exec {LINEAR}")
            dirs.append(pathlib.Path(re.search(r"^logs (\S+) ", out, re.M)[1]))
            job, uuid = re.fullmatch(rf"{tmp_path}/state/gacc/jobs/(\d+)-([0-9a-f-]{{36}})", str(dirs[-1])).groups()
            assert one.json("describe", f"job/{job}")["uuid"] == uuid and f"by {endpoint}" in (dirs[-1] / "worker_0.log").read_text()
        assert dirs[0] != dirs[1]


def test_a_python_rank_is_heard_at_once(cluster):
    """It prints without flush and goes on for long."""
    running = cluster.start("run", *SGD, "--", sys.executable, "-c", "print('here I am')\nimport time\ntime.sleep(1000)")
    assert any("here I am" in line for line in iter(lambda: next_line(running), ""))
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_a_run_that_is_interrupted_cancels_its_job(cluster, name):
    running = cluster.start("run", *SGD, "--", "sh", "-c", "echo here; exec sleep 1000")
    assert any("here" in line for line in iter(lambda: next_line(running), ""))
    running.send_signal(signal.Signals[name])
    said = "".join(running.communicate(timeout=30))
    assert re.search(r"cancelling job \d+; once more kills the ranks", said), said


@pytest.mark.parametrize("end, said, code", [("exit 3", r"exited with code 3", 3), ("kill -9 $$", r"was killed by signal 9 \(Killed\)", 137)])
def test_run_fails_a_job_whose_rank_crashes(cluster, end, said, code):
    """Nobody has cancelled it, so it is not CANCELLED, and its reason names the rank."""
    crash = ("sh", "-c", f"test $RANK = 1 && {{ sleep 0.5; echo last words; {end}; }}; exec {LINEAR}")
    out = cluster.run("run", "-n", 2, "--grace", "5s", "-f", EXAMPLES / "linear.yaml", "--set", "steps=0", "--name", "crash", "--", *crash,
                      code=code)
    assert "last words" in cluster.err
    assert re.search(rf"^job \d+ FAILED .* rank 1 \(pid \d+\) {said}", out, re.M), out
    job, = [j for j in cluster.json("jobs", "-a")["jobs"] if j["spec"]["name"] == "crash" and re.search(said, j["reason"])]
    assert job["state"] == "FAILED" and job["reason"].startswith("rank 1 (pid ")


TORCHS = r"^(RANK|WORLD_SIZE|LOCAL_\w+|GROUP_\w+|NODE_RANK|MASTER_\w+|TORCHELASTIC\w+)="


def test_run_without_torchs_variables(cluster):
    """A library that finds RANK would start torch.distributed; libgacc finds its place by GACC_RANK."""
    for option, there in ((), True), (("--no-torch-env",), False):
        out = cluster.run("run", "-n", 2, *option, "-f", EXAMPLES / "linear.yaml", "--tee", "all", "--", "sh", "-c", f"env; exec {LINEAR}")
        assert re.search(r"COMPLETED", out) and "GACC_RANK=1" in out and "GACC_WORLD_SIZE=2" in out, out
        assert bool(re.search(TORCHS.replace("^", r"^(?:\[rank\d\] )?"), out, re.M)) == there, out


LEAVER = ("env", f"GACC_BUILD_DIR={build_dir()}", sys.executable, pathlib.Path(__file__).parent / "trainers/leaver.py")
LEAVERS = ("run", "-n", 2, *SGD, "--set", "micro_size=1")


@pytest.mark.parametrize("how", ["inline", "mapped", "at once"])
def test_run_ends_a_job_that_a_rank_has_left_early(cluster, how):
    """It ended with 0, so nothing seems wrong; the others would wait for it until stall_abort."""
    command = ("sh", "-c", f"test $RANK = 1 || exit 0; exec {' '.join(map(str, LEAVER))} inline 0") if how == "at once" else \
        (*LEAVER, how, 0)
    start = time.monotonic()
    out = cluster.run(*LEAVERS, "--grace", "50s", "--", *command, code=7)
    assert time.monotonic() - start < 45  # the others end when they are told to
    assert re.search(r"^--- rank 0 \(pid \d+\) exited with 0 before the job was complete; last lines of ", cluster.err, re.M), cluster.err
    assert re.search(r"^job \d+ FAILED .* rank 0 \(pid \d+\) exited with 0 before the job was complete", out, re.M), out


@pytest.mark.parametrize("how", ["inline", "mapped"])
def test_run_lets_ranks_go_that_have_given_all(cluster, how):
    """Of the only window, or of all: it has taken its leave."""
    for more in ([*LEAVER, how, 1.5], [*LEAVER, how, 0.8, "done"]):
        steps = 3 if "done" in more else 1
        out = cluster.run(*LEAVERS, "--grace", "5s", "--set", f"steps={steps}", "--", *more)
        assert re.search(rf"^job \d+ COMPLETED .*steps {steps}/{steps}", out, re.M) and "exited" not in cluster.err, out + cluster.err
