# SPDX-License-Identifier: Apache-2.0
"""The commands of gaccctl. Ranks are played by gacc_client's Rank, or are linear."""
import json
import os
import pathlib
import re
import signal
import subprocess

import numpy as np
import pytest

from cli import EXAMPLES, LINEAR, SGD, Cli, cluster, columns, folder, json_names, one_rank, step  # noqa: F401 (fixtures)
from harness import Client, Daemon, Rank, alive, next_line, wait_until


# ---- cluster ----


def test_cluster_lives_and_dies(folder):
    cli, tmp = Cli(folder), folder
    assert "no cluster" in (cli.run("cluster", "status", code=4), cli.err)[1]
    cli.run("cluster", "down", code=4)
    line = cli.run("cluster", "up")
    folder, = tmp.glob("gacc-cluster-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cli.run("cluster", "up") == line and "runs already" in cli.err
    up = cli.json("cluster", "status")
    assert line == f"export GACC_ENDPOINT={up['endpoint']}\n" and up["directory"] == str(folder)
    assert cli.run("cluster", "status").startswith("up: gaccd ")
    cli.env["GACC_ENDPOINT"] = up["endpoint"]
    cli.submit()
    assert cli.run("cluster", "down") == "" and not folder.exists() and not alive(up["pid"])
    assert "cannot reach" in (cli.run("jobs", code=3), cli.err)[1]


def test_cluster_knows_its_own_process(folder):
    """A number that now belongs to another process is not signalled, and a dead one is replaced."""
    cli, tmp = Cli(folder), folder
    pid = (cli.run("cluster", "up"), cli.json("cluster", "status"))[1]["pid"]
    folder, = tmp.glob("gacc-cluster-*")
    children = [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    for p in (pid, *children):
        os.kill(p, signal.SIGKILL)
    wait_until("death", lambda: not alive(pid))
    other = subprocess.Popen(["sleep", "60"])
    try:
        state = json.loads((folder / "cluster.json").read_text())
        state["nodes"][0]["pid"] = other.pid
        (folder / "cluster.json").write_text(json.dumps(state))
        assert "has died" in (cli.run("cluster", "status", code=8), cli.err)[1]
        cli.run("cluster", "up")
        assert cli.json("cluster", "status")["pid"] not in (pid, other.pid)
        cli.run("cluster", "down")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_cluster_takes_no_folder_of_others(folder):
    cli, folder = Cli(folder), folder / "open"
    folder.mkdir()
    folder.chmod(0o755)
    assert "not a private directory" in (cli.run("cluster", "up", "--dir", folder, code=1), cli.err)[1]
    assert list(folder.iterdir()) == []
    assert "cannot be started" in (cli.run("cluster", "up", "--gaccd", "/nonexistent", code=1), cli.err)[1]
    assert "only letters" in (cli.run("cluster", "up", "--dir", f"{folder}/a; b", code=2), cli.err)[1]  # for eval


def test_one_job_that_fails_does_not_keep_the_others_from_it(cluster):
    first, last = cluster.submit(name="first"), cluster.submit(name="last")
    out = cluster.run("cancel", first, "nonesuch", last, "-o", "name", code=4)
    assert out == f"job/{first}\njob/{last}\n" and 'no job "nonesuch"' in cluster.err
    cluster.run("cancel", "a", "b", "--endpoint", "/nowhere/gaccd.sock", code=3)
    assert cluster.err.count("error:") == 1


# ---- submit, wait ----


def test_submit_and_wait(cluster):
    assert cluster.run("submit", "-f", EXAMPLES / "linear.yaml", "--set", "ranks=1", "--dry-run").startswith("{")
    before = len(cluster.json("jobs", "-a")["jobs"])
    job = int(cluster.run("submit", "-f", EXAMPLES / "linear.yaml", "--set", "ranks=1", "--set", "steps=5"))
    assert f"gaccctl status {job} -w" in cluster.err
    assert len(cluster.json("jobs", "-a")["jobs"]) == before + 1
    assert "time is up" in (cluster.run("wait", job, "--timeout", "50ms", code=5), cluster.err)[1]
    ranks = {"GACC_JOB_ID": str(job), "RANK": "0", "WORLD_SIZE": "1"}
    waiting = cluster.start("wait", job, "--for", "step=3", "-o", "json")
    subprocess.run([LINEAR], env={**cluster.env, **ranks}, check=True, capture_output=True, timeout=60)
    out, _ = waiting.communicate(timeout=30)
    assert waiting.returncode == 0 and json.loads(out)["applied_step"] >= 3
    assert cluster.run("wait", job) == f"job {job} (linear) is COMPLETED, 5 steps applied\n"
    assert cluster.run("wait", job, "--for", "state=completed", "-o", "name") == f"job/{job}\n"
    assert "is COMPLETED" in (cluster.run("wait", job, "--for", "step=6", code=7), cluster.err)[1]
    cluster.run("wait", "nonesuch", code=4)


def test_wait_waits_for_gaccd(folder):
    """Also when it is not there at the beginning; for --timeout at most."""
    cli = Cli(folder, f"unix:{folder}/c/gaccd.sock")
    cli.run("wait", 1, "--timeout", "100ms", code=5)
    assert "gaccd.sock: No such file or directory; waiting for it\n" in cli.err
    assert "error: the time is up: cannot reach gaccd" in cli.err
    waiting = cli.start("wait", 1, "--for", "state=cancelled", "--timeout", "60s")
    assert "waiting for it" in next_line(waiting, waiting.stderr)
    cli.run("cluster", "up", "--dir", folder / "c")
    wait_until("the end of the wait", lambda: waiting.poll() is not None)  # there is no such job yet
    assert waiting.returncode == 4 and "no job" in waiting.stderr.read()
    waiting.stdout.close(), waiting.stderr.close()
    cli.run("cluster", "down", "--dir", folder / "c")


def test_submit_reads_the_standard_input(cluster):
    spec = json.dumps({"metadata": {"name": "piped"}, "spec": {"optimizer": {"type": "sgd"}}})
    assert cluster.run("submit", "-f", "-", "-o", "name", stdin=spec).startswith("job/")
    assert "unknown key" in (cluster.run("submit", "-f", "-", code=2, stdin="spec: {rank: 1}"), cluster.err)[1]
    job = json.loads(cluster.run("submit", "-f", "-", "-o", "json", stdin=spec))
    assert job["spec"]["name"] == "piped" and job["state"] == "PENDING"
    for j in cluster.json("jobs")["jobs"]:
        if j["spec"]["name"] == "piped":
            cluster.run("cancel", j["id"])


def test_submit_wait_follows_and_detaches(cluster, tmp_path):
    """Shows rank 0's output; Ctrl-C leaves the job alone; a second follower ends with the job, 7 as it is cancelled."""
    logs = tmp_path / "logs"
    follower = cluster.start("submit", *SGD, "--name", "followed", "--log-dir", logs / "%j", "--wait")
    assert re.fullmatch(r"job \d+ \(followed\) is PENDING.*\n", first := next_line(follower))
    job = int(first.split()[1])
    (logs / str(job)).mkdir(parents=True)
    (logs / str(job) / "worker_0.log").write_text("hello from rank 0\n")
    assert next_line(follower) == "hello from rank 0\n"
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=20)
    assert follower.returncode == 130 and f"gaccctl logs {job} -f" in err
    assert cluster.state(job) == "PENDING"
    follower = cluster.start("logs", job, "-f")
    assert next_line(follower) == "hello from rank 0\n"
    waiting = cluster.start("wait", job)
    cluster.run("cancel", job, "--reason", "enough")
    follower.communicate(timeout=20)
    _, err = waiting.communicate(timeout=20)
    assert follower.returncode == 0 and waiting.returncode == 7


def test_submit_wait_ends_with_the_job(cluster):
    follower = cluster.start("submit", *SGD, "--set", "steps=2", "--name", "whole", "--wait", "-o", "json")
    job = int(re.match(r"job (\d+) ", next_line(follower, follower.stderr))[1])
    with one_rank(cluster, job) as r:
        step(r, 1), step(r, 1)
    out, err = follower.communicate(timeout=20)
    assert follower.returncode == 0, err
    assert json.loads(out)["state"] == "COMPLETED" and f"job {job} COMPLETED   steps 2/2" in err


def test_submit_wait_ends_with_the_rank_that_failed(cluster, tmp_path):
    """Jobs that gaccd launches: a whole one, and one whose rank 1 exits with 3 and takes the other with it."""
    path = tmp_path / "launched.yaml"
    path.write_text("spec: {ranks: 2, steps: 3, micro_size: 4, batch: 8, optimizer: {type: sgd, lr: 0.01}, "
                    f"launch: {{mode: daemon, command: [{LINEAR}]}}}}")
    out = cluster.run("submit", "-f", path, "--wait")
    assert re.search(r"^job \d+ \(launched\) is (PENDING|STARTING)", out) and re.search(r"^job \d+ COMPLETED   steps 3/3", out, re.M)
    said = "until grep -qs hello $GACC_LOG_DIR/worker_0.log; do sleep 0.01; done"
    command = f'launch.command=[sh, -c, "echo hello from $PWD; [ $RANK = 0 ] && exec sleep 60; {said}; exit 3"]'
    out = cluster.run("submit", "-f", path, "--set", command, "--wait", "--tee", "all", code=3)
    assert f"[rank0] hello from {os.getcwd()}\n" in out and "exited with code 3" in cluster.err
    job = int(re.match(r"job (\d+) ", out)[1])
    assert "Root cause:       rank 1" in cluster.run("describe", f"job/{job}")
    rows = cluster.run("status", job, "-o", "wide").splitlines()
    assert rows[1].split()[-2:] == ["EXIT", "RESTARTS"] and rows[3].split()[-2:] == ["3", "0"]


# ---- control ----


def test_jobs_by_state_and_user(cluster):
    running = cluster.submit(name="running")
    ended = cluster.submit(name="ended")
    cluster.run("cancel", ended)
    wait_until("its end", lambda: cluster.state(ended) == "CANCELLED")
    me = cluster.json("describe", f"job/{running}")["user"]

    def names(*words):
        return cluster.run("jobs", "-o", "name", *words).split()
    assert names("--state", "pending") == names("--state", "PENDING,stalled") == [f"job/{running}"]
    assert names("--state", "stalled") == [] == names("--user", me + "x")
    assert f"job/{ended}" in names("--state", "cancelled", "--user", me) and f"job/{running}" not in names("--state", "cancelled")
    assert set(names("--state", "cancelled,pending", "--user", me)) >= {f"job/{running}", f"job/{ended}"}
    assert [j["id"] for j in cluster.json("jobs", "--state", "pending")["jobs"]] == [running]
    for bad in ("", "running,", "walking"):
        cluster.run("jobs", "--state", bad, code=2)
        assert f"--state {bad}: states are pending" in cluster.err
    cluster.run("cancel", running)


def test_watching_goes_on_over_a_restart(folder):
    with Daemon() as d:
        cli = Cli(folder, d.endpoint)
        watching = [cli.start("jobs", "-w", "-o", "jsonl"), cli.start("events", "-w", "-o", "name"), cli.start("top", "-d", "50ms")]
        first = cli.submit(name="before")
        assert json.loads(next_line(watching[0]))["id"] == first
        assert next_line(watching[1]).startswith("event/") and "gaccd" in next_line(watching[2])
        d.kill_gaccd()
        for w in watching:
            assert "; trying again" in next_line(w, w.stderr)
        d.start()
        second = cli.submit(name="after")
        wait_until("the second job", lambda: json.loads(next_line(watching[0]))["id"] == second)
        event = cli.json("events", second)["events"][0]["id"]
        wait_until("its event", lambda: next_line(watching[1]) == f"event/{event}\n")
        wait_until("both in one picture", lambda: " 2 jobs " in next_line(watching[2]))
        for w in watching:
            w.terminate(), w.wait(), w.stdout.close(), w.stderr.close()
        for job in (first, second):
            d.cancel(job)


@pytest.mark.parametrize("words", [("status", 1, "-w"), ("status", "-w"), ("jobs", "-w"), ("events", "-w"), ("top",)])
def test_watching_needs_a_first_answer(folder, words):
    cli = Cli(folder, f"unix:{folder}/gaccd.sock")
    cli.run(*words, code=3, timeout=10)
    assert "gaccd.sock: No such file or directory\n  is gaccd running?" in cli.err


def test_pause_resume_update(cluster):
    job = cluster.submit("--set", "steps=0")
    with one_rank(cluster, job) as r:
        step(r, 1)
        assert "is PAUSED" in cluster.run("pause", job, "--reason", "lunch")
        assert cluster.json("describe", f"job/{job}")["reason"].find("lunch") >= 0
        r.push([np.ones(3, np.float32)])
        assert r.wait_step is not None and cluster.state(job) == "PAUSED"
        assert "gaccctl status" in cluster.run("resume", f"job/{job}")
        assert r.wait_step().result.applied_step == 2
        window = int(re.search(r"from window (\d+) on", cluster.run("update", job, "lr=0.5", "clip_norm=2"))[1])
        before = r.params()["w"].copy()
        while (result := step(r, 1)).window < window:
            before = r.params()["w"].copy()
        assert result.lr == 0.5 and np.allclose(before - r.params()["w"], 0.5, atol=1e-6)
        later = result.window + 100
        assert cluster.json("update", job, "lr=0.25", "--window", later) == {"window": later}
        assert f"from window {later}: lr=0.25" in cluster.run("describe", f"job/{job}")
        cluster.run("update", job, "lr=1", "--window", 1, code=2)
    cluster.run("cancel", job)


def test_norms_of_the_next_window(cluster):
    job = cluster.submit("--set", "steps=0")
    with one_rank(cluster, job) as r:
        step(r, 2)
        asking = cluster.start("norms", job, "-o", "json")

        def answered():
            step(r, 2)
            return asking.poll() is not None
        wait_until("its end", answered, 60, 0.02)
        out, err = asking.communicate(timeout=60)
        assert asking.returncode == 0, out + err
        norms = json.loads(out)
        assert norms["norms"][0]["name"] == "w"
        assert norms["norms"][0]["grad_norm"] == pytest.approx(2 * 3 ** 0.5)
        step_of = norms["window"] * 0.1 * 2 * 3 ** 0.5
        assert norms["norms"][0]["param_norm"] == pytest.approx(step_of, rel=1e-4)
    cluster.run("cancel", job)


def test_a_name_that_looks_like_an_id_is_refused(cluster):
    for name in ("123", "job/7"):
        cluster.run("submit", *SGD, "--name", name, code=2)
        assert f'name "{name}" would be taken for the id of a job: give it a letter' in cluster.err, cluster.err


def test_a_learning_rate_of_0_is_told(cluster):
    job = cluster.submit("--set", "optimizer.lr=0")
    assert "warning: optimizer.lr is 0: no step changes the parameters" in cluster.err
    assert "NoLearningRate" in cluster.run("events", job)
    cluster.run("cancel", job)
    job = cluster.submit()
    assert "warning" not in cluster.err and "NoLearningRate" not in cluster.run("events", job)
    cluster.run("cancel", job)


def test_keys_that_do_nothing_are_told(cluster, tmp_path):
    """Each of them needs another key, which is easily forgotten."""
    file = tmp_path / "job.yaml"
    file.write_text("spec: { optimizer: { type: sgd }, fixed_divisor: 3, launch: { command: [ls] } }")
    job = cluster.run("submit", "-f", file).strip()
    assert "warning: launch.command is not used: launch.mode is external" in cluster.err
    assert "warning: fixed_divisor is not used: reduction is not fixed_divisor" in cluster.err
    cluster.run("cancel", job)
    job = cluster.run("submit", "-f", file, "--set", "reduction=fixed_divisor", "--set", "launch.mode=daemon").strip()
    assert "warning" not in cluster.err, cluster.err
    cluster.run("cancel", job)


def test_empty_lists_are_told(cluster):
    job = cluster.submit()
    assert cluster.run("history", job) == "" and cluster.err == f"no window of job {job} has closed yet\n"
    assert cluster.run("checkpoint", "list", job) == ""
    assert cluster.err == f"job {job} has no checkpoints\n"
    assert cluster.json("checkpoint", "list", job)["checkpoints"] == [] and cluster.err == ""
    cluster.run("cancel", job)


def test_status_of_a_job_without_ranks_names_what_ends_it(cluster, tmp_path):
    """Not stall_abort, which is for ranks that others wait for."""
    file = tmp_path / "job.yaml"
    file.write_text("spec: { optimizer: { type: sgd }, timeouts: { stall_warn: 100ms }, tensors: [ { name: w, shape: [4] } ], "
                    "init: [ { pattern: '*', type: zeros } ] }")
    job = cluster.run("submit", "-f", file).strip()
    cluster.run("wait", job, "--for", "state=stalled")
    out = cluster.run("status", job)
    assert "ends after timeouts.abandoned" in out and "hint: start its ranks" in out and "stall_abort" not in out, out
    cluster.run("cancel", job)


def test_a_token_file_that_cannot_be_read_is_named(folder):
    cli = Cli(folder, "127.0.0.1:1")
    cli.env["GACC_TOKEN_FILE"] = str(folder / "none")
    cli.run("jobs", code=1)
    assert cli.err == f"error: GACC_TOKEN_FILE: {folder}/none: No such file or directory\n"
    cli.env.update(GACC_TOKEN_FILE="", GACC_TLS_CERT="/dev/null")
    cli.run("jobs", code=2)
    assert cli.err == "error: GACC_TLS_CERT, GACC_TLS_KEY and GACC_TLS_CA go together, but 1 of them is set\n"


def test_what_was_left_out_is_shown_as_the_default(cluster):
    """A trainer's own JobSpec may leave enums at 0."""
    client = Client(cluster.endpoint)
    spec = client.types.spec(name="brief", ranks=1, micro_size=1, optimizer={"type": "sgd", "lr": 1})
    job = client.jobs.Submit(spec=spec, request_id=os.urandom(16)).job
    out = cluster.run("describe", f"job/{job.id}")
    assert "UNSPECIFIED" not in out and re.search("^Reduction: +WEIGHTED_MEAN$", out, re.M), out
    assert job.ranks[0].exit_status == -1  # gaccd has launched nobody
    cluster.run("cancel", job.id)


def test_no_jobs_are_told(tmp_path):
    with Daemon() as d:
        cli = Cli(tmp_path, d.endpoint)
        assert cli.run("jobs").split() == [] or cli.run("jobs").split()[0] == "ID"
        assert cli.err == "no jobs; those that have ended: gaccctl jobs -a\n"
        assert cli.json("jobs")["jobs"] == [] and cli.err == ""


# ---- look ----


def test_history(cluster):
    """Weights and losses as they were pushed; a rank that flushed early is short."""
    job = cluster.submit("--set", "steps=0", ranks=2, micro_size=2)
    with one_rank(cluster, job) as r, Rank(cluster.endpoint, job, 1, [("w", [3])]) as q:
        q.start()
        for k in range(2):
            r.push([np.ones(3, np.float32)], weight=k + 1, loss=0.5 + k, data_key=7 + k)
            if not k:
                q.push([np.ones(3, np.float32)], weight=4, loss=2)
        q.flush()
        r.wait_step(), q.wait_step()
    wait_until("the window", lambda: cluster.json("history", job)["windows"])
    window, = cluster.json("history", job, "--micros")["windows"]
    types = Client(cluster.endpoint).types
    assert set(window) == json_names(types.HistoryResponse.DESCRIPTOR)
    assert window["short_ranks"] == [1] and window["result"]["total_weight"] == 7
    assert window["result"]["mean_loss"] == pytest.approx((1 * 0.5 + 2 * 1.5 + 4 * 2) / 7)
    assert [(m["rank"], m["micro"], m["weight"], m["loss"], m["data_key"]) for m in
            sorted(window["micros"], key=lambda m: (m["rank"], m["micro"]))] == [(0, 0, 1, 0.5, f"{7:016x}"), (0, 1, 2, 1.5, f"{8:016x}"),
                                                                                 (1, 0, 4, 2, "0" * 16)]
    node = window["last_node"]
    assert window["blocks"] == [{"node": node, "first_rank": 0, "n_ranks": 2}] and node == cluster.json("describe", "node")["name"]
    row, = columns(cluster.run("history", job).replace("LATE BY", "BY").replace(" ms", "").replace(" (", "("))
    assert (row["WINDOW"], row["STEP"], row["OUTCOME"], row["MICROS"], row["WEIGHT"], row["LOSS"], row["NODE"], row["SHORT"]) == \
        ("0", "1", "APPLIED", "3", "7", "1.6429", node, f"1({node})")
    rows = columns(cluster.run("history", job, "--micros", "-n", 1).replace("LATE BY", "BY").replace(" ms", ""))
    assert sorted((x["RANK"], x["MICRO"], x["STATE"], x["WEIGHT"], x["LOSS"]) for x in rows) == \
        [("0", "0", "counted", "1", "0.5000"), ("0", "1", "counted", "2", "1.5000"), ("1", "0", "counted", "4", "2.0000")]
    assert cluster.run("history", job, "-o", "name") == "window/0\n"
    cluster.run("cancel", job)


def test_history_of_a_large_window(cluster):
    """It comes in two messages, and is one window."""
    n = 4100
    job = cluster.submit("--set", f"max_micro_size={n}", micro_size=n)
    with one_rank(cluster, job) as r:
        step(r, 1.0, micros=n)
        step(r, 2.0, micros=n)
        windows = cluster.json("history", job, "--micros")["windows"]
        assert [w["result"]["window"] for w in windows] == [1, 0]
        assert [[m["micro"] for m in w["micros"]] for w in windows] == [list(range(n))] * 2
        lines = cluster.run("history", job, "--micros", "-n", "1", "--no-headers").splitlines()
        assert len(lines) == n
        assert len(cluster.run("history", job, "-n", "5", "--no-headers").splitlines()) == 2
    cluster.run("cancel", job)


def test_events(cluster):
    job = cluster.submit()
    watching = cluster.start("events", job, "-w")
    assert next_line(watching).split()[:3] == ["AGE", "TYPE", "REASON"]
    assert "Submitted" in next_line(watching)
    cluster.run("cancel", job, "--reason", "for the events")
    assert "for the events" in next_line(watching)
    watching.terminate()
    watching.communicate(timeout=10)
    events = cluster.json("events", job)["events"]
    assert [e["id"] for e in events] == sorted(e["id"] for e in events) and {e["job"] for e in events} == {job}
    assert set(events[0]) == json_names(Client(cluster.endpoint).types.Event.DESCRIPTOR)
    assert len(cluster.json("events")["events"]) > len(events)
    assert cluster.json("events", "--since", "1ms")["events"] == []
    cluster.run("events", "nonesuch", code=4)


def test_buffers(cluster):
    job = cluster.submit("--set", "tensors=[{name: w, shape: [1000]}]", "--set", "init=[{pattern: '*', type: zeros}]")
    rows = cluster.json("buffers", job)["buffers"]
    assert sum(b["bytes"] for b in rows if b["kind"] == "slots") == 2 * 2 * (4 * 1024 + 4096)  # one rank's and the spare ones
    every = cluster.json("buffers")
    assert sum(b["bytes"] for b in every["buffers"]) <= every["host_bytes_used"] <= every["host_bytes_limit"]
    out = cluster.run("buffers", job)
    assert out.splitlines()[0].split() == ["JOB", "NODE", "PART", "KIND", "SEGMENTS", "TENSORS", "BYTES", "CLIENTS"]
    node, = every["nodes"]
    assert {line.split()[1] for line in out.splitlines()[1:-1]} == {node["name"]} == {b["node"] for b in rows}
    assert out.splitlines()[-1].startswith(f"node {node['name']}: ") and out.count(" of ") == 2
    assert f"job/{job}/slots\n" in cluster.run("buffers", "-o", "name")
    cluster.run("cancel", job)


def test_config_show(cluster):
    rows = {v["key"]: v for v in cluster.json("config", "show")["values"]}
    assert rows["listen.socket"] == {"key": "listen.socket", "value": cluster.endpoint[5:], "source": "command line"}
    assert rows["limits.jobs"]["source"] == "default"
    assert "limits.jobs" in cluster.run("config", "show", "-o", "name").splitlines()


def test_top(cluster):
    job = cluster.submit(name="topped")
    out = cluster.run("top", "-n", 2, "-d", "20ms")
    assert out.count("topped") == 4 and out.count(f"JOB {job}  topped  PENDING") == 2 and "\033" not in out
    cluster.run("cancel", job)


def test_bench(cluster, tmp_path):
    out = cluster.run("bench", "-b", "4K", "-e", "64K", "-f", 4, "-n", 3, "-w", 1, "-r", 3, "-J", tmp_path / "b.json")
    rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [r[0] for r in rows] == ["4096", "16384", "65536"] and [r[1] for r in rows] == ["1024", "4096", "16384"]
    assert all(r[2] == "f32" and r[-1] == "0" and all(float(x) >= 0 for x in r[3:9]) for r in rows)
    assert "# Out of bounds values : 0 OK\n" in out and re.search(r"^# Avg bus bandwidth    : \d+\.\d+ GB/s$", out, re.M)
    saved = json.loads((tmp_path / "b.json").read_text())
    assert saved["ok"] and saved["ranks"] == 3 and [r["size"] for r in saved["results"]] == [4096, 16384, 65536]
    for r in saved["results"]:
        assert r["busbw"] == pytest.approx(3 * r["algbw"]) and r["algbw"] == pytest.approx(r["size"] / r["total_us"] / 1e3)
    inline = cluster.json("bench", "-b", "16K", "-e", "16K", "-n", 2, "--path", "inline", "-c", 1)
    assert inline["path"] == "inline" and inline["wrong"] == 0
    assert not [j for j in cluster.json("jobs")["jobs"] if j["spec"]["name"] == "bench"]


def test_bench_is_stopped(cluster):
    bench = cluster.start("bench", "-b", "64K", "-e", "64K", "-n", 1000000)
    wait_until("the job", lambda: [j for j in cluster.json("jobs")["jobs"] if j["spec"]["name"] == "bench"])
    bench.send_signal(signal.SIGINT)
    bench.communicate(timeout=20)
    assert bench.returncode == 130
    wait_until("the job's end", lambda: not [j for j in cluster.json("jobs")["jobs"] if j["spec"]["name"] == "bench"])
