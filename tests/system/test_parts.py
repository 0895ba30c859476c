# SPDX-License-Identifier: Apache-2.0
"""Jobs of several parts on one node: each part has an engine, and their sums are exchanged over Gloo.

What a job must be, exact.py says. What the parts must do when one of them dies, stops or is alone, is here.
"""
import os
import pathlib
import signal
import threading
import time

import numpy as np
import pytest

from batches import OPTIMIZERS
from cli import Cli
from failpoint_job import read_manifest
from exact import Exact, Micro
from harness import Daemon, GaccError, Rank, wait_until
from saving_job import Job
from training import Team

TENSORS = [("w", [300, 70]), ("b", [33]), ("half", [517], "f16"), ("brain", [4099], "bf16")]
QUICK = {"coll.stall": "1s"}


@pytest.fixture
def d():
    with Daemon(conf=QUICK, allow=["AttemptFailed", "CommunicatorLost"]) as daemon:
        daemon.engines_killed = True
        yield daemon


def spec(ranks=4, parts=2, **more):
    return {"ranks": ranks, "micro_size": 2, "parts": parts, "optimizer": OPTIMIZERS["adamw"], **more}


def draws(window, ranks, counts=None):
    """A window's micro-batches, of values whose sums depend on the order."""
    out = []
    for rank in range(ranks):
        of_rank = []
        for micro in range(2 if counts is None else counts[rank]):
            rng = np.random.default_rng([window, rank, micro])
            of_rank.append((1.0 + rank + 0.25 * micro, {t[0]: rng.standard_normal(t[1]) * 10.0 ** rng.integers(-3, 3) for t in TENSORS}))
        out.append(of_rank)
    return out


class Compared:
    """A team, and exact.py beside it."""

    def __init__(self, daemon, s, place=None):
        self.team, self.model, self.ranks, self.n = Team(daemon, s, TENSORS, place=place), Exact(s, TENSORS), s["ranks"], 0
        self.model.set_params({t[0]: np.zeros(t[1], np.float32) if len(t) < 3 or t[2] == "f16" else np.zeros(t[1], np.uint16)
                               for t in TENSORS} | {"half": np.zeros([517], np.float16)})

    def window(self, counts=None):
        work = draws(self.n, self.ranks, counts)
        got = self.team.window(work).result
        self.check([[(weight, self.team.as_sent(grads)[0]) for weight, grads in of] for of in work], got)

    def check(self, sent, got):
        micros = [Micro(r, m, weight, 0.0, grads) for r, of in enumerate(sent) for m, (weight, grads) in enumerate(of)]
        want = self.model.close(micros, 0)
        assert (got.outcome, got.grad_norm, got.total_weight) == (want["outcome"], want["grad_norm"], want["total_weight"]), f"window {self.n}"
        for name, array in self.team.params().items():
            assert array.tobytes() == self.model.params()[name].tobytes(), f"window {self.n}: {name}"
        self.n += 1

    def parts(self):
        return self.team.daemon.get_job(self.team.job).parts

    def pids(self):
        return wait_until("all engines", lambda: (pids := [p.engine_pid for p in self.parts()]) and all(pids) and pids)

    def close(self):
        for r in self.team.ranks:
            r.detach()
            r.close()


@pytest.mark.parametrize("parts", range(1, 9))
def test_bits_are_those_of_the_definition(d, parts):
    """Equal, unequal and missing micro-batches, also of a whole part."""
    c = Compared(d, spec(ranks=8, parts=parts))
    for window in range(6):
        c.window([None, [2, 1, 0, 2, 2, 2, 1, 2], [0] * 4 + [2] * 4, [0] * 7 + [1], None, [1] * 8][window])
    c.close()


def test_parts_are_seen(d):
    c = Compared(d, spec(ranks=5, parts=2))
    c.window()
    assert [(p.number, p.first_rank, p.n_ranks) for p in c.parts()] == [(0, 0, 2), (1, 2, 3)]
    assert len(set(c.pids())) == 2 and d.get_job(c.team.job).engine_pid == c.pids()[0]
    c.close()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_engine_that_is_killed_costs_no_step(d, which):
    c = Compared(d, spec(ranks=3, parts=3))
    c.window()
    for _ in range(3):
        d.kill_engine(c.team.job, c.pids()[which])
        c.window()
    c.close()


def test_kills_while_windows_close(d):
    """Engines die at random moments; no trainer notices more than a later answer."""
    c, stop = Compared(d, spec(ranks=4, parts=4)), threading.Event()
    rng = np.random.default_rng(11)
    left = 0  # kills of a window: on a busy machine engines would never all be there otherwise

    def kill():
        nonlocal left
        while not stop.wait(float(rng.uniform(0.02, 0.25))):
            pids = [p.engine_pid for p in c.parts() if p.engine_pid]
            if pids and left:
                left -= 1
                d.kill_engine(c.team.job, int(rng.choice(pids)))

    killer = threading.Thread(target=kill)
    c.window()
    killer.start()
    try:
        for _ in range(25):
            left = 6
            c.window()
    finally:
        stop.set()
        killer.join()
    c.window()
    c.close()


def check_what_is_shown(d, job):
    """While the engine of part 1 is stopped."""
    cli = Cli(d.dir, d.endpoint)
    parts = cli.json("comms", job)["parts"]
    assert [p.get("unreachable", []) for p in parts] == [[1], []]
    assert [p.engine_pid for p in d.get_job(job).parts] == [p["engine_pid"] for p in parts]
    assert cli.run("comms", f"job/{job}", "-o", "name") == f"job/{job}/part/1\n"
    lines = [line.split() for line in cli.run("comms", job).splitlines()]
    node = parts[0]["node"]
    assert lines[0] == ["PART", "NODE", "RANKS", "ENGINE", "JOINED", "CANNOT", "REACH"]
    assert lines[1][:4] == ["0", node, "0-0", str(parts[0]["engine_pid"])] and lines[1][5:] == ["part", "1", f"({node})"]
    assert lines[2][:3] == ["1", node, "1-1"] and lines[2][5:] == ["-"]
    assert cli.run("comms", job, "-o", "name", "--no-headers") == f"job/{job}/part/1\n"


def test_a_stopped_engine_is_named_and_waited_for(d):
    """In the exchange: the other engine says for whom it waits. Later it goes on, and so does the job."""
    c = Compared(d, spec(ranks=2, parts=2))
    c.window()
    work = draws(c.n, 2)
    sent = [[(weight, c.team.as_sent(grads)[0]) for weight, grads in of] for of in work]
    for weight, grads in sent[1]:
        c.team[1].push(grads, weight=weight)
    pid = c.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    for weight, grads in sent[0]:
        c.team[0].push(grads, weight=weight)
    try:
        wait_until("an attempt that names the part", lambda: any("cannot reach part 1" in line for line in d.events("AttemptFailed")), 20)
        check_what_is_shown(d, c.team.job)
    finally:
        os.kill(pid, signal.SIGCONT)
    c.check(sent, [r.wait_step() for r in c.team.ranks][0].result)
    c.window()
    cli = Cli(d.dir, d.endpoint)
    assert cli.run("comms", c.team.job, "-o", "name") == "" and not any(p.get("unreachable") for p in cli.json("comms", c.team.job)["parts"])
    assert len({line.split()[4] for line in cli.run("comms", c.team.job, "--no-headers").splitlines()}) == 1  # all have joined the same one
    whole = d.submit(spec(ranks=2, parts=1, name="whole"))
    assert cli.run("comms", whole) == "" and "has one part" in cli.err and cli.json("comms", whole)["parts"] == []
    assert "JOB_NOT_FOUND" in cli.run("comms", 4711, "-o", "json", code=4)
    d.cancel(whole)
    c.close()


def test_gaccd_dies_while_windows_close():
    with Daemon(supervise=True, conf=QUICK, allow=["AttemptFailed", "CommunicatorLost", " WARN"]) as d:
        c = Compared(d, spec(ranks=4, parts=2))
        for _ in range(4):
            c.window()
            d.kill_gaccd()
            d.wait_ready()
        c.window()
        c.close()


def test_two_parts_are_given_different_parameters(d):
    """The first that has some gives them to the others; whoever comes later is told that they are there."""
    job = d.submit(spec(ranks=2, parts=2))
    ranks = [Rank(d, job, r, TENSORS, ranks=2) for r in range(2)]
    start = [threading.Thread(target=r.start, args=({t.name: np.full(t.shape, 1.0 + r.rank, np.float16 if t.name == "half" else np.float32)
                                                     if t.name != "brain" else np.full(t.shape, 0x3f80, np.uint16) for t in r.tensors},)) for r in ranks]
    for t in start:
        t.start()
    for t in start:
        t.join()
    a, b = [{n: p.tobytes() for n, p in r.params().items()} for r in ranks]
    assert a == b
    for r in ranks:
        r.detach()
        r.close()


# ---- what is refused ----


@pytest.mark.parametrize("ranks,parts,words", [(4, 5, "not more than ranks (4)"), (32, 17, "must be 1..16")])
def test_numbers_of_parts_that_cannot_be(d, ranks, parts, words):
    with pytest.raises(GaccError) as e:
        d.submit(spec(ranks=ranks, parts=parts))
    assert e.value.reason == "INVALID_SPEC" and words in str(e.value)


# ---- checkpoints ----


@pytest.mark.parametrize("before,after", [((3, 3), (2, 1)), ((3, 3), (2, 2)), ((2, 1), (4, 3)), ((2, 2), (2, 2))])
def test_a_checkpoint_begins_a_job_of_other_parts(d, before, after):
    """Also where the straggler of the last window has a number that the new job does not have."""
    job = Job(d, ranks=before[0], parts=before[1])
    job.step(2)
    again = Job(d, ranks=after[0], parts=after[1], name="again", restore_from=job.save().path)
    assert again.params() == job.params()
    assert again.step().applied_step == 3
    job.leave(), again.leave()


def test_the_last_window_may_have_been_larger_than_any_of_the_new_job(d):
    job = Job(d, ranks=3)
    assert job.step().micro_count == 6
    again = Job(d, ranks=1, micro_size=1, max_micro_size=1, name="again", restore_from=job.save().path)
    assert again.params() == job.params() and again.ranks[0].resumed.last.micro_count == 1
    job.leave(), again.leave()


@pytest.mark.parametrize("before,after,words", [(1, 2, "of 1 part, the job has 2"), (2, 1, "of 2 parts, the job has 1"), (3, 2, "of 3 parts, the job has 2")])
def test_other_parts_begin_the_window_anew(d, before, after, words):
    job = Job(d, ranks=3, parts=before)
    job.step()
    job.push(0, 0), job.push(1, 0)
    k = job.save(inside_window=True)
    d.allow.append(" CarryDropped job=")
    again = Job(d, ranks=3, parts=after, name="again", restore_from=k.path)
    [line] = d.events("CarryDropped")
    assert "2 micro-batches of window 1" in line and words in line
    assert [r.missing for r in again.ranks] == [[0, 1]] * 3 and again.params() == job.params()
    assert again.step().micro_count == 6
    job.leave(), again.leave()


INSIDE = [((0, 0), (1, 0), (2, 0), (0, 1)), ((0, 0), (0, 1)), ((1, 0), (2, 0), (1, 1), (2, 1))]


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("inside", INSIDE, ids=["all parts", "the first part", "all but the first"])
def test_an_open_window_goes_on_with_the_same_bits(d, parts, inside):
    job = Job(d, ranks=3, parts=parts)
    job.step(2)
    for rank, micro in inside:
        job.push(rank, micro)
    k = job.save(inside_window=True)
    check_files(job, k, parts, inside)
    again = Job(d, ranks=3, parts=parts, name="again", restore_from=k.path)
    assert [r.missing for r in again.ranks] == [[m for m in range(2) if (r, m) not in inside] for r in range(3)]
    assert again.params() == job.params()
    a, b = finish(job, inside), finish(again, inside)
    assert (a.params_digest, a.grad_norm, a.total_weight, a.micro_count, a.mean_loss) == (b.params_digest, b.grad_norm, b.total_weight, 6, b.mean_loss)
    assert job.step(2).params_digest == again.step(2).params_digest and again.params() == job.params()
    job.leave(), again.leave()


def finish(job, inside):
    """The window's other micro-batches, and its step."""
    for micro in range(2):
        for rank in range(job.n):
            if (rank, micro) not in inside:
                job.push(rank, micro)
    return [r.wait_step() for r in job.ranks][0].result


def check_files(job, k, parts, inside):
    """Each part with something in its sum has two files of it, the model and the optimizer's state are there once; nothing else is left."""
    folder = pathlib.Path(k.path)
    manifest = read_manifest(folder)
    first = [i * job.n // parts for i in range(parts + 1)]
    has = [sum(first[i] <= rank < first[i + 1] for rank, _ in inside) for i in range(parts)]
    names = [f"{n}-{i + 1:05d}-of-{parts:05d}.safetensors" for i in range(parts) if has[i] for n in ("carry", "window")]
    assert [f["name"] for f in manifest["files"]] == ["model.safetensors", "optimizer.safetensors", *names]
    assert {p.name for p in folder.iterdir()} == {f["name"] for f in manifest["files"]} | {"manifest.json"}
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]
    assert manifest["version"] == 3 and manifest["inside_window"] and [p["count"] for p in manifest["parts"]] == has
    assert k.carried_micros == manifest["carry"]["count"] == len(inside) and k.bytes == sum(f["bytes"] for f in manifest["files"])
    assert manifest["carry"]["sum_weight"] == sum(1 + rank + micro for rank, micro in inside)


def test_a_window_in_which_nothing_is_counted_is_a_boundary(d):
    job = Job(d, ranks=2, parts=2)
    job.step()
    k = job.save(inside_window=True)
    manifest = read_manifest(pathlib.Path(k.path))
    assert manifest["version"] == 1 and not manifest["inside_window"] and "parts" not in manifest and len(manifest["files"]) == 2
    assert len(list(pathlib.Path(k.path).parent.iterdir())) == 1
    job.leave()


def test_deleted_with_all_its_files(d):
    """Those of the parts, too: by the policy that keeps one."""
    job = Job(d, ranks=2, parts=2, checkpoint={"keep": 1})
    job.push(0, 0), job.push(1, 0)
    old = pathlib.Path(job.save(inside_window=True).path)
    assert len(list(old.iterdir())) == 7
    job.save(inside_window=True)
    wait_until("the old one is deleted", lambda: not old.exists())
    job.leave()


@pytest.mark.parametrize("which", [0, 1])
def test_an_engine_dies_while_the_parts_save(d, which):
    """The checkpoint is made with its successor, or fails and leaves nothing behind; training goes on."""
    job = Job(d, ranks=2, parts=2)
    job.step()
    job.push(0, 0), job.push(1, 0)
    d.allow.append(" CheckpointFailed job=")
    for _ in range(4):
        waiting = threading.Thread(target=lambda: saved.append(job.save(inside_window=True)))
        saved = []
        waiting.start()
        d.kill_engine(job.id, wait_until("its engine", lambda: d.get_job(job.id).parts[which].engine_pid))
        waiting.join()
        if saved[0].state == 2:
            read_manifest(pathlib.Path(saved[0].path))
            assert saved[0].carried_micros == 2
    complete = [k for k in job.saved() if k.state == 2]
    folder = pathlib.Path(job.save(inside_window=True).path)
    assert len(list(folder.parent.iterdir())) == len(complete) + 1
    again = Job(d, ranks=2, parts=2, name="again", restore_from=str(folder))
    inside = [(0, 0), (1, 0)]
    assert finish(job, inside).params_digest == finish(again, inside).params_digest
    job.leave(), again.leave()
