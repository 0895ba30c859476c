# SPDX-License-Identifier: Apache-2.0
"""Looking back and into: history, events, shared memory, configuration; over restarts, for another user, with a broken disk."""
import contextlib
import json
import os
import pathlib
import sqlite3
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from google.protobuf import json_format

from harness import Daemon, GaccError, Rank, resident, wait_until
from launching import launched
from training import Team

SGD = {"type": "sgd", "lr": 0.1}
ONES = {"w": np.ones(3, np.float32)}


def job(ranks=2, micro_size=3, **spec):
    return {"name": "look", "ranks": ranks, "micro_size": micro_size, "optimizer": SGD, **spec}


def history(d, j, **fields):
    return d.client.jobs.History(job=str(j), **fields)


def events(d, j="", **fields):
    return list(d.client.jobs.ListEvents(job=str(j), **fields).events)


def key(m):
    return m.rank, m.micro


def push_window(team, counts, seed, late=None, bad=()):
    """One window; what was pushed, (rank, micro) -> (weight, loss, data_key), and its outcome as the trainers heard it.
    `late`: this rank, the last one, gives its last micro-batch 0.1 s after the others have given theirs. `bad`: these are not finite."""
    random, sent, others = np.random.default_rng(seed), {}, threading.Semaphore(0)
    for r, n in enumerate(counts):
        for m in range(n):
            sent[r, m] = (float(random.uniform(0.5, 9)), float(random.normal()), int(random.integers(1, 2 ** 63)))

    def one(rank):
        n = counts[rank.rank]
        for m in range(n):
            if rank.rank == late and m == n - 1:
                for _ in counts[1:]:
                    assert others.acquire(timeout=60)
                time.sleep(0.1)
            weight, loss, data_key = sent[rank.rank, m]
            grad = np.full(3, np.nan) if (rank.rank, m) in bad else np.full(3, m + 1.0)
            rank.push([grad], weight=weight, loss=loss, data_key=data_key)
        others.release()
        if n < team.spec["micro_size"]:
            rank.flush()
        return rank.wait_step()

    return sent, team._all(one)[0].result


def check_window(h, sent, result, ranks, micro_size, bad=(), late=None):
    assert str(h.result) == str(result)
    assert {key(m): (m.weight, m.loss, m.data_key) for m in h.micros} == sent and len(h.micros) == len(sent)
    assert {key(m) for m in h.micros if m.rejected} == set(bad)
    assert list(h.short_ranks) == [r for r in range(ranks) if sum(k[0] == r for k in sent) < micro_size]
    for index in {m.micro for m in h.micros}:
        pushed = {m.rank: m.pushed_unix_nanos for m in h.micros if m.micro == index}
        assert {m.rank: m.lag_ns for m in h.micros if m.micro == index} == \
            {r: t - min(pushed.values()) for r, t in pushed.items()}
    good = [m for m in h.micros if not m.rejected]
    assert h.result.micro_count == len(good)
    assert h.result.total_weight == pytest.approx(sum(m.weight for m in good), rel=1e-14)
    assert h.result.mean_loss == pytest.approx(sum(m.weight * m.loss for m in good) / sum(m.weight for m in good), rel=1e-12)
    if late is not None:
        last = max((m for m in h.micros if m.rank == late), key=lambda m: m.micro)
        assert 0.1e9 <= last.lag_ns < 20e9
        assert h.result.last_rank == late and h.result.last_lag_ns >= 0.09e9  # by reports, which may take a while


# ---- the history ----


def test_history_is_what_was_pushed():
    with Daemon(allow=["MicroVoid", "MicroRejected"]) as d:
        with Team(d, job(nonfinite="reject_micro"), [("w", [3])]) as team:
            cases = [dict(counts=(3, 3)), dict(counts=(3, 3), late=1), dict(counts=(3, 1)),
                     dict(counts=(3, 3), bad=[(1, 1)]), dict(counts=(0, 3))]
            done = [push_window(team, seed=i, **c) for i, c in enumerate(cases)]
            got = history(d, team.job, micros=True)
            assert [h.result.window for h in got] == [4, 3, 2, 1, 0]
            for h, c, (sent, result) in zip(got[::-1], cases, done):
                check_window(h, sent, result, 2, 3, c.get("bad", ()), c.get("late"))
            without = history(d, team.job)
            assert [h.result for h in without] == [h.result for h in got] and not any(h.micros for h in without)
            assert [list(h.short_ranks) for h in without] == [[0], [], [1], [], []]
            assert [h.result.window for h in history(d, team.job, limit=2)] == [4, 3]
            assert [h.result.window for h in history(d, "look", before_window=3, limit=2)] == [2, 1]
            assert [h.result.window for h in history(d, team.job, before_window=1)] == [0]
            with pytest.raises(GaccError) as e:
                history(d, "nothing")
            assert e.value.reason == "JOB_NOT_FOUND"


def test_a_large_window_comes_in_several_messages():
    with Daemon() as d:
        with Team(d, job(2, 2100, max_micro_size=2100), [("w", [3])]) as team:
            sent, result = push_window(team, (2100, 2100), 1)
            got = history(d, team.job, micros=True)
            assert [len(h.micros) for h in got] == [4096, 104]
            assert all(str(h.result) == str(result) for h in got)
            assert {key(m): (m.weight, m.loss, m.data_key) for h in got for m in h.micros} == sent


def test_history_and_events_survive_a_kill():
    with Daemon(supervise=True) as d:
        with Team(d, job(), [("w", [3])]) as team:
            before = [push_window(team, (3, 3), seed) for seed in range(3)]
            old_windows, old_events = history(d, team.job, micros=True), events(d, team.job)
            assert [e.reason for e in old_events][:1] == ["Submitted"] and len(old_windows) == 3
            d.kill_gaccd()
            d.wait_ready()
            assert history(d, team.job, micros=True) == old_windows
            assert list(d.get_job(team.job).events)[:len(old_events)] == old_events
            after = push_window(team, (3, 2), 3)
            got = history(d, team.job, micros=True)
            assert got[1:] == old_windows
            for h, (sent, result) in zip(got[::-1], before + [after]):
                check_window(h, sent, result, 2, 3)
        every = events(d)
        assert [e.id for e in every] == sorted({e.id for e in every})
        assert [e.reason for e in every if not e.job] == ["Ready", "Ready"]
        assert events(d, after_id=every[2].id) == every[3:]
        assert events(d, after_id=every[0].id, limit=2) == every[1:3]
        assert events(d, team.job) == [e for e in every if e.job]
        assert events(d, team.job)[-1].reason == "Completed"
        assert [(e.id, e.message) for e in d.get_job(team.job).events] == [(e.id, e.message) for e in every if e.job]


def spoil(d, how):
    """What `how` does to the history while gaccd is dead."""
    d.kill_gaccd()
    how(d.dir / "state/history.db")
    d.start()


def remove(path):
    for part in path.parent.glob("history.db*"):
        part.unlink()


def overwrite(path):
    remove(path)  # the log alone would make it whole
    path.write_bytes(bytes(range(256)) * 64)


def test_what_the_history_lost_comes_from_the_journal():
    with Daemon(allow=[" Ended job="]) as d:
        with contextlib.closing(Team(d, job(), [("w", [3])])) as team:  # the job ends with its memory
            results = [push_window(team, (3, 3), seed)[1] for seed in range(20)]
            spoil(d, remove)
            got = history(d, team.job, micros=True, limit=100)[::-1]
            assert [h.result.window for h in got] == list(range(4, 20)) and not any(h.micros for h in got)
            got[-1].result.params_digest = results[-1].params_digest  # the engine had it, whose memory is gone
            for h, result in zip(got, results[4:]):
                assert str(h.result) == str(result) and h.result.params_digest


def test_digests_survive_a_kill():
    """Right behind the last outcome: what the history had not written yet comes from the journal, the newest digest from the engine."""
    with Daemon(supervise=True) as d:
        with Team(d, job(), [("w", [3])]) as team:
            for life in range(3):
                results = [push_window(team, (3, 3), seed)[1] for seed in range(4)]
                d.kill_gaccd()
                d.wait_ready()
                told = [team.ranks[0].wait_step(window=r.window).result for r in results]
                assert [str(r) for r in told] == [str(r) for r in results]
                wait_until("the newest window", lambda: history(d, team.job, limit=1)[0].result.window == results[-1].window)
                got = history(d, team.job, limit=4)[::-1]
                assert [h.result.params_digest for h in got] == [r.params_digest for r in results] and results[-1].params_digest, life


def test_a_damaged_history_stops_nothing():
    with Daemon(allow=["history"]) as d:
        for _ in range(2):
            spoil(d, overwrite)
            assert (d.dir / "state/history.db.damaged").exists()
            with Team(d, job(), [("w", [3])]) as team:
                sent, result = push_window(team, (3, 3), 5)
                check_window(history(d, team.job, micros=True)[0], sent, result, 2, 3)
            wait_until("the job's end", lambda: d.state(team.job) == "COMPLETED")


def test_the_history_cannot_be_had():
    """Another process has the file: gaccd works without, and with it as soon as it can."""
    with Daemon(allow=["history"], start=False) as d:
        (d.dir / "state").mkdir(mode=0o700)
        other = sqlite3.connect(d.dir / "state/history.db")
        other.execute("BEGIN EXCLUSIVE")
        d.start()
        with Team(d, job(), [("w", [3])]) as team:
            push_window(team, (3, 3), 1)
            with pytest.raises(GaccError) as e:
                history(d, team.job)
            assert e.value.reason == "IO_ERROR"
            assert [e.reason for e in d.get_job(team.job).events][:1] == ["Submitted"]
            other.close()
            sent, result = push_window(team, (3, 3), 2)
            check_window(history(d, team.job, micros=True)[0], sent, result, 2, 3)


def test_a_slow_reader_costs_little():
    """8000 windows of 128 micro-batches: 57 MB, of which gaccd holds a part at a time."""
    with Daemon(conf={"history.windows": 10000}, allow=[" Ended job="]) as d:
        with contextlib.closing(Team(d, job(), [("w", [3])])) as team:
            push_window(team, (3, 3), 1)
            wanted = history(d, team.job)[0]

            def fill(path):
                with sqlite3.connect(path) as db:
                    cells = b"".join(struct.pack("=4I2d2qQ", r, m, 0, 0, 2.5, r + m, 1, 0, 7) for r in range(8) for m in range(16))
                    db.executemany("INSERT INTO windows VALUES (?, ?, ?)",
                                   ((team.job, w, wanted.SerializeToString()) for w in range(1, 8001)))
                    db.executemany("INSERT INTO micros (job, window, data) VALUES (?, ?, ?)",
                                   ((team.job, w, cells) for w in range(1, 8001)))
                db.close()
            spoil(d, fill)
            history(d, team.job, micros=True, limit=10)
            before = resident(d.pid)
            stream = d.client.jobs.History.stream(job=str(team.job), micros=True, limit=10000)
            next(stream)
            peak = 0
            for _ in range(50):
                time.sleep(0.01)
                peak = max(peak, resident(d.pid))
            assert peak - before < 30 << 20, f"{(peak - before) >> 20} MiB"
            assert sum(len(h.micros) for h in stream) == 7999 * 128 + 6


# ---- shared memory ----


def test_a_list_of_huge_jobs_has_the_ranks_of_the_first():
    """Two jobs of one user must not keep gaccd busy for seconds with every List."""
    spec = {"micro_size": 1, "steps": 1, "slots_per_rank": 1, "optimizer": {"type": "sgd", "lr": 0.1}}
    with Daemon(conf={"limits.jobs": 1, "limits.jobs_per_user": 1}) as d:
        first = d.submit({**spec, "ranks": 1})  # they wait for it: together they need more descriptors than a process may have
        jobs = [d.submit({**spec, **launched("true", ranks=ranks), "name": f"j{ranks}"}) for ranks in (5000, 15001, 10000)]
        listed = {j.id: len(j.ranks) for j in d.client.jobs.List().jobs}
        assert listed == {first: 1, jobs[0]: 5000, jobs[1]: 0, jobs[2]: 10000}
        assert [j.spec.ranks for j in d.client.jobs.List().jobs] == [10000, 15001, 5000, 1]
        assert len(d.get_job(jobs[1]).ranks) == 15001
        for job in (*jobs, first):
            d.cancel(job)


def test_what_many_watch_does_not_keep_gaccd():
    """A change is packed for each who watches: the ranks of all these messages together are bounded."""
    with Daemon() as d:
        watched = d.submit({**job(5000, 1), "labels": [{"key": "a", "value": "b"}]})

        def watch():
            stream = d.client.jobs.Watch.stream(job=str(watched))
            first = next(stream).job
            assert len(first.ranks) == 5000 and len(first.spec.labels) == 1
            return stream

        def check(change, ranks):
            assert len(change.job.ranks) == ranks and change.job.spec.ranks == 5000 and not change.job.spec.labels

        streams = [watch() for _ in range(4)]
        d.client.jobs.Pause(job=str(watched))
        for stream in streams:
            check(next(stream), 5000)
        streams.append(watch())
        d.cancel(watched)
        ended = d.get_job(watched)
        assert len(ended.ranks) == 5000
        for stream in streams:
            *_, last = stream
            check(last, 0)
            assert last.job.state == ended.state and last.job.reason == ended.reason


def test_a_stall_that_many_hear_of_names_some():
    """100 streams and 299 late ranks: 200 of these are named to each; more if not all streams are there yet."""
    with Daemon(allow=[" RankLate job=", " NoRanks job="]) as d:
        j = d.submit({**job(300, 1), "stall_warn_ms": 1500})
        with contextlib.closing(Rank(d, j, 0, [("w", [3])], 300)) as r:
            r.start(ONES)
            streams = [d.client.gradient.WatchSession.stream(session=r.session) for _ in range(100)]
            r.push([np.ones(3)])
            stall = next(m.stall for m in streams[0] if m.HasField("stall"))
            late = {x.rank for x in stall.late if x.late_ns > 1e9}
            assert 200 <= len(late) == len(stall.late) < 299 and late < set(range(1, 300)) and stall.waiting_ns > 1e9
            d.cancel(j)
            for s in streams:
                list(s)


def test_rules_without_effect_are_told_once():
    """A mistyped pattern is no error, as tensors may be missing from a model on purpose; but nobody should look for it for days."""
    rules = {"init": [{"pattern": "*", "type": 1}, {"pattern": "w", "type": 1}],
             "param_groups": [{"pattern": "w", "lr_scale": 2}, {"pattern": "wieght", "lr_scale": 2}]}
    said = [f"rules without effect, as no tensor's name matches them, or an earlier rule matches first: {rules}" for rules in (
        'param_groups[1] (pattern "wieght"), init[1] (pattern "w")', 'param_groups[1] (pattern "wieght")')]
    with Daemon(supervise=True, allow=["UnusedRules"]) as d:
        ranks_register = d.submit(job(1, **rules))
        in_the_spec = d.submit(job(1, tensors=[{"name": "w", "dtype": 1, "shape": [3]}], **{**rules, "init": rules["init"][:1]}))
        with Rank(d, ranks_register, 0, [("w", [3])]) as r:
            r.register()
            r.ready()
            d.kill_gaccd()
            d.wait_ready()
            for j, text in zip((ranks_register, in_the_spec), said):
                wait_until("the job", lambda j=j: d.get_job(j).state != 1)
                assert [e.message for e in events(d, j) if e.reason == "UnusedRules"] == [text]
        d.cancel(in_the_spec)


def test_a_list_has_no_tensors():
    """Hundreds of jobs may have hundreds of thousands each."""
    long = {"tensors": [{"name": f"w{i}", "dtype": 1, "shape": [3]} for i in range(100)], "init": [{"pattern": "*", "type": 1}],
            "param_groups": [{"pattern": "w1*", "lr_scale": 2}], "labels": [{"key": "a", "value": "b"}]}
    with Daemon() as d:
        one = d.submit({**job(), **long})
        for _ in range(2):  # running and over
            [listed], whole = d.client.jobs.List(all=True).jobs, d.get_job(one)
            assert [len(getattr(whole.spec, k)) for k in long] == [100, 1, 1, 1]
            for k in long:
                whole.spec.ClearField(k)
            assert listed.spec == whole.spec and len(listed.ranks) == 2
            d.cancel(one)


def test_buffers_add_up():
    kinds = {"adamw": {"accumulator", "parameters", "master", "optimizer state", "slots", "control", "mailboxes"},
             "client": {"accumulator", "parameters", "slots", "control", "mailboxes"}}
    with Daemon(conf={"limits.host_memory": "64MiB", "limits.host_memory_per_user": "48MiB"}, allow=["RankLost job=1 "]) as d:
        assert not d.client.node.ListBuffers().buffers
        adam = {"type": "adamw", "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
        tensors = [("w", [300, 7]), ("b", [7], "bf16")]
        with Team(d, job(optimizer=adam), tensors) as a, Team(d, job(optimizer={"type": "client"}),
                                                                          [("w", [99]), ("b", [7])], inline=(1,)) as b:
            every = d.client.node.ListBuffers()
            used = d.client.node.GetNode().host_bytes_used
            assert sum(x.bytes for x in every.buffers) == used == every.host_bytes_used == every.user_bytes_used > 0
            assert (every.host_bytes_limit, every.user_bytes_limit) == (64 << 20, 48 << 20)
            of = {j: {x.kind: x for x in every.buffers if x.job == j} for j in (a.job, b.job)}
            assert set(of[a.job]) == kinds["adamw"] and set(of[b.job]) == kinds["client"]
            for j, clients in ((a.job, 2), (b.job, 1)):
                mine = of[j]
                assert sum(x.bytes for x in mine.values()) == d.get_job(j).host_bytes
                assert {x.tensors for k, x in mine.items() if k not in ("control", "mailboxes")} == {2}
                assert mine["control"].tensors == mine["mailboxes"].tensors == 0 and mine["mailboxes"].segments == 2
                assert mine["slots"].clients == mine["parameters"].clients == clients
                assert mine["slots"].segments == (2 + 1) * 2 and mine["accumulator"].segments == 2
                assert list(d.client.node.ListBuffers(job=str(j)).buffers) == list(mine.values())
            assert of[a.job]["accumulator"].clients == 0 and of[b.job]["accumulator"].clients == 1

            def slots_of_a():
                return next(x.clients for x in d.client.node.ListBuffers(job=str(a.job)).buffers if x.kind == "slots")
            for left in (1, 0):
                a[left].attach_socket.close()
                wait_until(f"{left} clients", lambda left=left: slots_of_a() == left)
        wait_until("the memory's end", lambda: not d.client.node.ListBuffers().buffers)


# ---- another user ----


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_sees_nothing_of_it():
    with Daemon(conf={"listen.mode": "0666"}) as d:
        d.dir.chmod(0o755)
        with Team(d, job(), [("w", [3])]) as team:
            push_window(team, (3, 3), 1)
            script = pathlib.Path(__file__).parent / "trainers/onlooker.py"
            seen = json.loads(subprocess.run([sys.executable, script, d.endpoint, str(team.job)], check=True, capture_output=True,
                                             text=True, env={**os.environ, "HOME": "/"}).stdout)
            used = d.client.node.GetNode().host_bytes_used
        assert seen == {"history": "JOB_NOT_FOUND", "events of the job": "JOB_NOT_FOUND", "buffers of the job": "JOB_NOT_FOUND",
                        "jobs of events": [0], "buffers": 0, "used": [0, used], "config": "OK"}


# ---- the configuration ----


class WithFile(Daemon):
    def command(self):
        command = super().command()
        (self.dir / "gaccd.yaml").write_text("limits:\n  jobs: 7\nhistory: {windows: 12}\n")
        return command


def test_configuration_and_where_it_comes_from(tmp_path):
    token = tmp_path / "token"
    token.write_text("a secret of many letters\n")
    token.chmod(0o600)
    with WithFile(conf={"listen.token_file": token}, env={"GACC_LIMITS_JOBS_PER_USER": "3"}) as d:
        values = {v.key: (v.value, v.source) for v in d.client.node.GetConfig().values}
        assert values["limits.jobs"] == ("7", f"{d.dir}/gaccd.yaml:2:9")
        assert values["history.windows"] == ("12", f"{d.dir}/gaccd.yaml:3:20")
        assert values["limits.jobs_per_user"] == ("3", "environment")
        assert values["listen.socket"] == (str(d.socket), "command line")
        assert values["listen.mode"] == ("0660", "default")
        assert values["log.format"] == ("text", "command line")
        assert values["history.events"] == ("10000", "default")
        assert values["listen.token_file"] == (str(token), "command line")
        assert not any("secret" in v for v, _ in values.values())


def shown(d, job):
    """All that gaccd says of a job, as JSON, but for what is of this life of it: engine_pid, engine_restarts and clients are of processes and
    connections; lateness begins anew, as nobody is late for gaccd."""
    def plain(message):
        return json_format.MessageToDict(message, preserving_proto_field_name=True)
    answers = {"get": plain(d.client.jobs.Get(job=str(job)).job), "list": plain(d.client.jobs.List().jobs[0]),
               "history": [plain(w) for w in d.client.jobs.History(job=str(job), micros=True)],
               "checkpoints": plain(d.client.jobs.ListCheckpoints(job=str(job))), "buffers": plain(d.client.node.ListBuffers(job=str(job)))}
    answers["get"].pop("events")  # and what has happened since
    for j in answers["get"], answers["list"]:
        j.pop("engine_pid", 0), j.pop("engine_restarts", 0)  # after a restart the engine may not be up yet
        for r in j["ranks"]:
            r.pop("late_ns", 0), r.pop("detail", 0)
    for b in answers["buffers"]["buffers"]:
        b.pop("clients", 0)
    return answers


VICTIM = """
import sys, time
sys.path.insert(0, sys.argv[1])
from harness import Rank
r = Rank(sys.argv[2], int(sys.argv[3]), 2, [("w", [16])], 6)
r.start()
while r.window < 3:
    for _ in range(3):
        r.push([[1] * 16], weight=3)
    r.wait_step()
r.push([[1] * 16], weight=7)
time.sleep(1000)
"""


def test_what_is_shown_outlives_gaccd():
    """In the middle of a window: ranks that compute, are lost, have flushed, have left, push in messages."""
    tensors, grads, ranks = [("w", [16])], [np.ones(16, np.float32)], 6
    with Daemon(supervise=True, allow=["RankLost job=", "RankLate job=", "NoRanks job="]) as d, contextlib.ExitStack() as stack:
        job = d.submit({"ranks": ranks, "micro_size": 3, "optimizer": {"type": "sgd", "lr": 0.1}, "stall_warn_ms": 100,
                        "checkpoint": {"every_steps": 2}})
        victim = subprocess.Popen([sys.executable, "-c", VICTIM, pathlib.Path(__file__).parent, d.endpoint, str(job)])
        stack.callback(victim.wait), stack.callback(victim.kill)
        r = {i: stack.enter_context(contextlib.closing(Rank(d, job, i, tensors, ranks, inline=i == 5))) for i in (0, 1, 3, 4, 5)}
        for x in r.values():
            x.start({"w": np.zeros(16, np.float32)})
        for window in range(3):
            for micro in range(3):
                for x in r.values():
                    x.push(grads, weight=1 + x.rank, loss=window)
            for x in r.values():
                x.wait_step()
        r[0].push(grads, weight=2), r[1].push(grads, weight=0.5)
        r[3].flush(), r[4].detach()
        r[5].push(grads, weight=0.1)
        r[0].push(grads, weight=3)
        victim.kill()
        wait_until("the loss", lambda: d.events("RankLost") and d.get_job(job).ranks[0].micro_count == 2)
        d.client.jobs.Pause(job=str(job), reason="looking")
        time.sleep(1)  # the history is written with each tick
        before = shown(d, job)
        assert [x.get("weight", 0) for x in before["get"]["ranks"]] == [5, 0.5, 7, 0, 0, 0.1]
        assert before["get"]["state"] == "JOB_STATE_PAUSED" and before["get"]["steps_per_second"] > 0
        d.kill_gaccd()
        d.wait_ready()
        after = before

        def ranks_are_back():  # their states come from the engine, then their weights from the history
            nonlocal after
            after = shown(d, job)
            return all(after[x]["ranks"] == before[x]["ranks"] for x in ("get", "list"))

        wait_until(lambda: f"the ranks are\n{after['get']['ranks']}\nand were\n{before['get']['ranks']}", ranks_are_back)
        for a, b in zip((before["get"], before["list"]), (after["get"], after["list"])):
            assert abs(int(a.pop("state_since_unix_nanos")) - int(b.pop("state_since_unix_nanos"))) < 1e8
        for key in before:
            assert after[key] == before[key], key
        d.cancel(job)
