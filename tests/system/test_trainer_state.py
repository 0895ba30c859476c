# SPDX-License-Identifier: Apache-2.0
"""The trainers' own states (random numbers, data position, ..): which checkpoint has whose, and who gets it back."""
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

from harness import Daemon, GaccError, Rank, build_dir, next_line, wait_until
from python_package import gacc
from saving_job import COMPLETE, FAILED, TENSORS, Job, d, read_safetensors  # noqa: F401 (fixture)

pytestmark = pytest.mark.sanitize

KIB, MIB = 1 << 10, 1 << 20


def put(rank, data, window=None, portion=MIB):
    """The whole state, in portions."""
    window = rank.window if window is None else window
    for at in range(0, len(data), portion):
        answer = rank.gacc.PutTrainerState(session=rank.session, window=window, total_bytes=len(data), offset=at, data=data[at:at + portion])
        assert answer.received_bytes == min(at + portion, len(data))


def get(rank):
    """(window, bytes); None: there is none."""
    data, first = b"", None
    while first is None or len(data) < first.total_bytes:
        answer = rank.gacc.GetTrainerState(session=rank.session, offset=len(data))
        first = first or answer
        assert (answer.window, answer.total_bytes) == (first.window, first.total_bytes)
        assert not first.found or answer.data
        data += answer.data
    return (first.window, data) if first.found else None


def states_in(path):
    """rank -> bytes, by an independent reader, and as many as the manifest says."""
    manifest, file = json.loads((pathlib.Path(path) / "manifest.json").read_text()), pathlib.Path(path) / "states.safetensors"
    if not file.exists():
        assert "states" not in manifest and "states.safetensors" not in [f["name"] for f in manifest["files"]]
        return {}
    found = read_safetensors(file)
    assert all(dtype == "U8" and shape == [len(data)] for dtype, shape, data in found.values())
    assert (manifest["version"], manifest["states"]) == (5, len(found))
    return {int(name.removeprefix("rank.")): data for name, (_, _, data) in found.items()}


def test_the_bytes_come_back(d):
    """In portions of one, of many, and of odd sizes; from the same session, its successor, and a job that begins with the checkpoint."""
    job = Job(d)
    assert [get(r) for r in job.ranks] == [None, None]
    job.step(1)
    given = [os.urandom(3 * MIB + 17), b"\0"]
    put(job.ranks[0], given[0], portion=777 * KIB)
    put(job.ranks[1], given[1])
    assert [get(r) for r in job.ranks] == [(1, g) for g in given]
    k = job.save()
    assert (k.state, k.window, k.state_bytes) == (COMPLETE, 1, (pathlib.Path(k.path) / "states.safetensors").stat().st_size)
    assert states_in(k.path) == dict(enumerate(given))
    assert "with the state of 2 of 2 trainers" in d.events("CheckpointSaved")[0]
    again = Job(d, name="again", restore_from=k.path)
    assert [get(r) for r in again.ranks] == [(1, g) for g in given]
    successor = Rank(d, again.id, 0, TENSORS, 2)
    assert get(successor) == (1, given[0])
    successor.close()
    job.leave(), again.leave()


def complete(job, n):
    wait_until("not saved", lambda: [k.state for k in job.saved()] == [COMPLETE] * n)
    return job.saved()


def test_a_checkpoint_has_the_states_of_its_window(d):
    """every_steps saves as the window opens, and waits for what is put in it then."""
    job = Job(d, checkpoint={"every_steps": 2})
    for window in range(7):
        for i, r in enumerate(job.ranks):
            put(r, f"rank {i} before window {window}".encode())
        saved = complete(job, window // 2)
        job.step(1)
    assert [k.window for k in saved] == [2, 4, 6]
    for k in saved:
        assert states_in(k.path) == {i: f"rank {i} before window {k.window}".encode() for i in (0, 1)}
    job.leave()


def test_who_has_pushed_without_a_state_is_not_waited_for(d):
    """Rank 0 has never put one, rank 1 has and pushes on without; a checkpoint in the window has what was put for that window alone."""
    job = Job(d)
    put(job.ranks[1], b"one")
    k = job.save()
    assert states_in(k.path) == {1: b"one"}
    job.step(1)
    job.push(0, 0), job.push(1, 0)
    k = job.save()
    assert (k.state, k.window, k.state_bytes, states_in(k.path)) == (COMPLETE, 1, 0, {})
    assert get(job.ranks[1]) == (0, b"one")  # an older window's, and it says so
    assert not d.events("StatesMissing")
    job.leave()


def test_a_live_rank_that_owes_one_is_waited_for_and_named():
    """10 s after the engine's files are there the checkpoint goes on without; a rank that dies or leaves ends the wait at once."""
    with Daemon(allow=[" StatesMissing ", " RankLost "]) as d:  # noqa: F811
        job = Job(d)
        [put(r, b"x") for r in job.ranks]
        job.step(1)
        put(job.ranks[0], b"y")
        begun = time.monotonic()
        k = job.save()
        assert (k.state, states_in(k.path)) == (COMPLETE, {0: b"y"}) and time.monotonic() - begun > 9
        assert "of 1 rank, the first is rank 1" in d.events("StatesMissing")[0]
        late = threading.Timer(1, put, (job.ranks[1], b"z"))
        late.start()
        assert states_in(job.save().path) == {0: b"y", 1: b"z"}
        late.join()
        job.step(1)
        put(job.ranks[0], b"y")
        begun = time.monotonic()
        late = threading.Timer(0.5, job.ranks.pop().close)
        late.start()
        assert states_in(job.save().path) == {0: b"y"} and time.monotonic() - begun < 8
        late.join()
        job.leave()


def test_killed_gaccds_take_nothing_from_a_checkpoint():
    """gaccd dies after the checkpoint, and again after the restore, before the ranks have asked for what the checkpoint has."""
    with Daemon(supervise=True) as daemon:
        job = Job(daemon)
        job.step(1)
        [put(r, bytes([i]) * 1000) for i, r in enumerate(job.ranks)]
        k = job.save()
        daemon.kill_gaccd()
        daemon.wait_ready()
        assert [(c.path, c.state_bytes) for c in job.saved()] == [(k.path, k.state_bytes)]
        assert get(job.ranks[0]) is None  # gaccd's memory is gone; put again from the next window on
        job.step(1)
        put(job.ranks[0], b"new")
        assert get(job.ranks[0]) == (2, b"new")
        again = Job(daemon, name="again", restore_from=k.path)
        daemon.kill_gaccd()
        daemon.wait_ready()
        again.ranks[0].ready()
        assert [get(r) for r in again.ranks] == [(1, bytes([i]) * 1000) for i in (0, 1)]
        job.leave(), again.leave()


def refusal(call, *args, **fields):
    with pytest.raises(GaccError) as e:
        call(*args, **fields)
    return e.value.reason, f"{e.value.text}; {e.value.detail.hint}"


def test_another_number_of_ranks_is_told(d):
    job = Job(d)
    put(job.ranks[1], b"one")
    k = job.save()
    fewer = Job(d, ranks=1, name="fewer", restore_from=k.path)
    reason, text = refusal(get, fewer.ranks[0])
    assert reason == "NOT_SUPPORTED" and "of 2 ranks, and this job has 1" in text and "as many ranks" in text
    put(fewer.ranks[0], b"own")
    assert get(fewer.ranks[0]) == (0, b"own")
    fewer.step(1)  # it trains, whatever it makes of that
    job.leave(), fewer.leave()


def test_what_is_too_much_is_refused(d):
    """Each refusal says how much there may be, and leaves what was put before; all ranks of a job share 64 MiB."""
    job = Job(d, ranks=18, micro_size=1)
    put(job.ranks[0], b"before")
    reason, text = refusal(put, job.ranks[0], bytes(4 * MIB + 1))
    assert reason == "RESOURCE_EXHAUSTED" and "4194305 bytes, and a rank's may have 4194304" in text and "save less" in text
    for r in job.ranks[1:16]:
        put(r, bytes(4 * MIB))
    assert get(job.ranks[0]) == (0, b"before")
    put(job.ranks[16], bytes(4 * MIB - 6))
    reason, text = refusal(put, job.ranks[17], b"x")
    assert reason == "RESOURCE_EXHAUSTED" and "may have 67108864" in text and "save less" in text
    job.ranks[3].gacc.PutTrainerState(session=job.ranks[3].session, window=0)  # none any more
    assert get(job.ranks[3]) is None
    put(job.ranks[17], b"x")
    states = states_in(job.save().path)
    assert sorted(states) == [i for i in range(18) if i != 3] and states[17] == b"x"
    job.leave()


def test_the_users_share_of_state_dir_counts_them():
    with Daemon(conf={"limits.state_per_user": "2MiB"}, allow=[" CheckpointFailed "]) as daemon:
        job = Job(daemon)
        put(job.ranks[0], bytes(3 * MIB))
        k = job.save()
        assert k.state == FAILED and "limits.state_per_user is 2.0 MiB" in k.message
        put(job.ranks[0], b"small")
        assert states_in(job.save().path) == {0: b"small"}
        job.leave()


def test_the_users_share_of_memory():
    """What takes the place of another counts once, and an ended job gives back what its states had."""
    with Daemon(conf={"limits.request_memory": "64MiB"}, allow=[" Ended "]) as daemon:  # 32 MiB for states and portions, so 16 MiB for one user
        job, other = Job(daemon, ranks=4), Job(daemon, name="other")
        for _ in range(5):
            put(job.ranks[0], bytes(4 * MIB))
        for r in job.ranks[1:]:
            put(r, bytes(4 * MIB))
        reason, text = refusal(put, other.ranks[0], b"x")
        assert reason == "RESOURCE_EXHAUSTED" and "the user's part of 32 MiB" in text and "limits.request_memory" in text
        job.ranks[0].gacc.PutTrainerState(session=job.ranks[0].session, window=0)  # none any more
        put(other.ranks[0], b"small")
        put(other.ranks[1], bytes(3 * MIB))
        assert refusal(put, job.ranks[0], bytes(2 * MIB))[0] == "RESOURCE_EXHAUSTED"
        daemon.cancel(job.id)
        job.leave()

        def fits():
            try:
                put(other.ranks[0], bytes(4 * MIB))
                return True
            except GaccError as e:
                assert e.reason == "RESOURCE_EXHAUSTED"
        wait_until("the memory is given back", fits, 30)  # it is kept 10 s for trainers that ask again
        put(other.ranks[1], bytes(4 * MIB))
        other.leave()


def test_the_first_state_of_all_while_a_checkpoint_is_written():
    """The job has begun the checkpoint of this window before any rank has put a state."""
    with Daemon() as daemon:
        job = Job(daemon)
        engine = daemon.engine_pid(job.id)
        os.kill(engine, signal.SIGSTOP)  # the checkpoint is under way until it goes on
        saving = threading.Thread(target=job.save)
        saving.start()
        time.sleep(1)
        put(job.ranks[0], b"first")
        os.kill(engine, signal.SIGCONT)
        saving.join()
        assert states_in(job.saved()[-1].path) == {0: b"first"}
        job.leave()


def test_at_the_wrong_time(d):
    job = Job(d)
    r = job.ranks[0]
    assert refusal(put, r, b"x", window=1)[0] == "NOT_CURRENT_WINDOW"
    job.push(0, 0)
    assert refusal(put, r, b"x")[0] == "WINDOW_BEGUN"
    job.push(1, 0), job.push(0, 1), job.push(1, 1)
    [x.wait_step() for x in job.ranks]
    assert refusal(put, r, b"x", window=0)[0] == "WINDOW_CLOSED"
    again = dict(session=r.session, window=1, total_bytes=4)
    assert refusal(r.gacc.PutTrainerState, **again, offset=2, data=b"cd")[0] == "OUT_OF_ORDER"
    assert refusal(r.gacc.PutTrainerState, **again, offset=2, data=b"cde")[0] == "INVALID_ARGUMENT"
    assert refusal(r.gacc.PutTrainerState, **again, offset=2**64 - 1, data=b"cde")[0] == "INVALID_ARGUMENT"
    for _ in range(2):  # both portions twice, as after lost answers
        assert r.gacc.PutTrainerState(**again, offset=0, data=b"ab").received_bytes == 2
    for _ in range(2):
        assert r.gacc.PutTrainerState(**again, offset=2, data=b"cd").received_bytes == 4
    assert get(r) == (1, b"abcd")
    job.leave()


def test_where_there_are_none(d):
    client = Job(d, name="client", optimizer={"type": "client"})
    assert "optimizer client" in refusal(put, client.ranks[0], b"x")[1]
    client.leave()


def test_a_changed_file_is_not_given_back():
    """One byte is another one, or the file is gone."""
    with Daemon(allow=[" RestoreFailed ", " Ended "]) as daemon:
        job = Job(daemon)
        put(job.ranks[0], b"abcdefgh")
        k = job.save()
        file = pathlib.Path(k.path) / "states.safetensors"
        whole = file.read_bytes()
        file.write_bytes(whole.replace(b"abcdefgh", b"abcdefgi"))
        again = Job(daemon, name="again", restore_from=k.path)
        reason, text = refusal(get, again.ranks[0])
        assert reason == "CHECKSUM" and f"restore_from: {file}: its SHA-256 is not that of the manifest" in text
        file.unlink()
        with pytest.raises(GaccError) as e:
            daemon.submit({**again.spec, "name": "gone"})
        assert "states.safetensors: No such file" in e.value.text
        job.leave(), again.leave()


def test_with_the_open_window(d):
    """The states of a checkpoint inside a window are those of its begin."""
    job = Job(d)
    job.step(1)
    [put(r, f"{i}".encode()) for i, r in enumerate(job.ranks)]
    job.push(0, 0)
    k = job.save(inside_window=True)
    assert k.carried_micros == 1 and states_in(k.path) == {0: b"0", 1: b"1"}
    again = Job(d, name="again", restore_from=k.path)
    assert [r.missing for r in again.ranks] == [[1], [0, 1]] and [get(r) for r in again.ranks] == [(1, b"0"), (1, b"1")]
    job.leave(), again.leave()


def test_the_last_state_of_a_job(d):
    """at_end: what a rank puts when it knows that the job is done; one that leaves without is not waited for."""
    job = Job(d, steps=2, checkpoint={"at_end": True})
    put(job.ranks[0], b"begin"), put(job.ranks[1], b"begin")
    job.step(2)
    put(job.ranks[0], b"end")
    job.leave()
    wait_until("completed", lambda: d.state(job.id) == "COMPLETED")
    assert states_in(job.saved()[-1].path) == {0: b"end"}


# ---- the Python package ----


def noisy_trainer(daemon, job, steps, rank=0, world=1):
    """Gradients from a generator of its own, whose state it saves in each window. Returns the last parameters."""
    session = gacc.attach(job, rank, world, endpoint=daemon.endpoint)
    session.register({"w": ("f32", (8,))})
    session.upload({"w": np.zeros(8)})
    rng = np.random.default_rng(7 + rank)
    saved = session.saved_state()
    if saved:
        assert saved.window == session.window
        rng.bit_generator.state = json.loads(saved.data)
    while session.applied_step < steps:
        session.save_state(json.dumps(rng.bit_generator.state).encode())
        for _ in session.missing:
            session.slot()["w"][:] = rng.standard_normal(8)
            session.push()
        session.wait()
    session.save_state(json.dumps(rng.bit_generator.state).encode())
    parameters = session.parameters["w"].tobytes()
    session.detach()
    return parameters


def test_a_python_trainer_resumes_bit_for_bit():
    """12 steps in one go, and 6 steps, a checkpoint at the end, the death of gaccd, and a job from there: the same parameters."""
    with Daemon(supervise=True) as daemon:
        spec = {"ranks": 1, "micro_size": 3, "optimizer": {"type": "adamw", "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}}
        whole = noisy_trainer(daemon, daemon.submit({**spec, "steps": 12}), 12)
        first = daemon.submit({**spec, "name": "first", "steps": 6, "checkpoint": {"at_end": True}})
        half = noisy_trainer(daemon, first, 6)
        wait_until("completed", lambda: daemon.state(first) == "COMPLETED")
        path = daemon.client.jobs.ListCheckpoints(job=str(first)).checkpoints[-1].path
        daemon.kill_gaccd()
        daemon.wait_ready()
        second = daemon.submit({**spec, "name": "second", "steps": 12, "restore_from": path})
        assert noisy_trainer(daemon, second, 12) == whole != half


@pytest.fixture
def killed():
    with Daemon(allow=[" RankLost "]) as daemon:
        yield daemon


def test_a_python_rank_that_dies_gets_its_state(killed):
    d = killed  # noqa: F811
    job = d.submit({"ranks": 1, "micro_size": 2, "optimizer": {"type": "sgd", "lr": 1.0}})

    def attached():
        session = gacc.attach(job, 0, 1, endpoint=d.endpoint)
        session.register({"w": ("f32", (4,))})
        session.upload({"w": np.zeros(4)})
        return session

    dies = attached()
    assert dies.saved_state() is None
    large = os.urandom(2 * MIB + 5)
    dies.save_state(large)
    dies.slot()["w"][:] = 1
    dies.push()
    with pytest.raises(gacc.GaccError) as e:
        dies.save_state(b"too late")
    assert e.value.reason == "WINDOW_BEGUN"
    dies.close()
    again = attached()
    assert again.saved_state() == gacc.SavedState(0, large) == (0, large) and again.missing == [1]
    with pytest.raises(gacc.GaccError) as e:
        again.save_state(bytes(5 * MIB))
    assert e.value.reason == "WINDOW_BEGUN"
    again.push()
    again.wait()
    with pytest.raises(gacc.GaccError) as e:
        again.save_state(bytes(5 * MIB))
    assert e.value.reason == "RESOURCE_EXHAUSTED" and "4194304" in e.value.message and "save less" in e.value.hint
    again.save_state(b"")
    assert again.saved_state() is None
    again.detach()


# ---- libgacc ----


def c_trainers(daemons, job, windows, size):
    """What each rank has begun with and its parameter, after so many windows; the ranks wait, each at one of the daemons."""
    trainers = [subprocess.Popen([build_dir() / "bin/state_trainer", d.endpoint, str(job), str(r), str(len(daemons)), str(windows), str(size)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for r, d in enumerate(daemons)]
    begun = [next_line(t).strip() for t in trainers]
    return trainers, begun, [next_line(t) for t in trainers]


def leave(trainers):
    for t in trainers:
        t.communicate(timeout=30)
        assert t.returncode == 0


def test_a_c_trainer_resumes(d):
    """The gradients follow from the state: 5 windows in one go, and 3, a checkpoint, and 2 in a job from there, have one parameter. In portions, too."""
    spec = {"ranks": 2, "micro_size": 2, "optimizer": {"type": "sgd", "lr": 0.01, "momentum": 0.5}}
    trainers, begun, whole = c_trainers([d, d], d.submit(spec), 5, 0)
    assert begun == ["new", "new"] and whole[0] == whole[1] and whole[0].startswith("ready ")
    leave(trainers)
    for size in (0, 3 * MIB):
        first = d.submit({**spec, "name": f"first {size}"})
        trainers, _, half = c_trainers([d, d], first, 3, size)
        k = d.client.jobs.SaveCheckpoint(job=str(first), wait=True, request_id=os.urandom(16)).checkpoint
        assert k.window == 3 and [len(s) for s in states_in(k.path).values()] == [size + 8] * 2
        leave(trainers)
        trainers, begun, end = c_trainers([d, d], d.submit({**spec, "name": f"second {size}", "restore_from": k.path}), 2, size)
        assert begun == ["3", "3"] and end == whole != half
        leave(trainers)


def test_a_c_trainer_is_told_what_is_too_much(killed):
    d = killed  # noqa: F811
    job = d.submit({"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1.0}})
    told = subprocess.run([build_dir() / "bin/state_trainer", d.endpoint, str(job), "0", "1", "0", str(5 * MIB)], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)
    assert told.returncode == 1 and "a rank's may have 4194304" in told.stderr and "save less" in told.stderr


# ---- gaccctl ----


def test_gaccctl_lists_them(d):
    job = Job(d)
    job.save()
    put(job.ranks[0], bytes(8 * KIB))
    k = job.save()
    head, *rows = subprocess.run([build_dir() / "bin/gaccctl", "checkpoint", "list", str(job.id)], env={**os.environ, "GACC_ENDPOINT": d.endpoint},
                                 capture_output=True, text=True, check=True).stdout.splitlines()
    assert k.state_bytes > 8 * KIB
    begin, end = head.index("SIZE") + 4, head.index("TRAINERS") + 8  # right-aligned
    assert [row[begin:end].strip() for row in rows] == ["-", "8.07 KiB"]
    job.leave()
