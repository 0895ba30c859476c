# SPDX-License-Identifier: Apache-2.0
"""The Python package's client, gacc.connect(), and its specifications, which must be those of gaccctl."""
import json
import threading
import time

import numpy as np
import pytest

from harness import wait_until
from python_package import environment, gacc
from test_examples import BIN, EXAMPLES, run

SGD = {"type": "sgd", "lr": 1.0}

EVERYTHING = """
api_version: gacc/v1
kind: Job
metadata: { name: all, labels: { a: b } }
spec:
  ranks: 2
  gradient_accumulation_steps: 3
  max_micro_size: 8
  steps: 7
  batch: 16
  reduction: fixed_divisor
  fixed_divisor: 12
  grad_of: sum
  uneven: drop
  accumulate_dtype: f64
  gradient_dtype: bf16
  master: none
  clip_norm: 1.5
  clip_value: 0.5
  nonfinite: reject_micro
  loss_scale: 64
  dynamic_loss_scale: { enabled: true, growth_interval: 10 }
  outlier_skip: { factor: 3 }
  optimizer: { type: adam, lr: 0.01, betas: [0.8, 0.9] }
  schedule: { type: step, step_size: 5, warmup_steps: 2 }
  param_groups: [{ pattern: '*.bias', weight_decay: 0 }, { pattern: 'e*', frozen: true, lr_scale: 2 }, { tensors: [g], lr_scale: 3 }]
  untouched: skip
  init: [{ pattern: '*', type: normal, b: 0.02 }]
  seed: 9
  deterministic: false
  slots_per_rank: 1
  timeouts: { stall_warn: 5s, stall_abort: 2m }
  launch: { mode: daemon, command: [/bin/true, -x], environment: { X: '1' }, max_restarts: 2, grace: 3s, no_torch_env: true }
  checkpoint: { every_steps: 4, keep: 2 }
  host_memory: 64MiB
  tensors: [{ name: e, dtype: bf16, shape: [2, 3] }, { name: f.bias, shape: [4] }, { name: g, shape: [1] }]
"""


@pytest.fixture
def client(daemon):
    with gacc.connect(daemon.endpoint) as c:
        yield c


def train(daemon, job, rank=0, ranks=1, pause=0.0):
    with gacc.attach(job, rank, ranks, endpoint=daemon.endpoint) as session:
        session.register({"w": ("f32", (4,))})
        session.upload([np.zeros(4)])
        while not session.done:
            for _ in session.missing:
                time.sleep(pause)
                session.fill([np.ones(4)])
                session.push(loss=session.window)
            session.wait()


# ---- specifications ----


@pytest.mark.parametrize("text", [(EXAMPLES / "linear.yaml").read_text(), (EXAMPLES / "mlp.yaml").read_text(), EVERYTHING, """
metadata: { name: small }
spec: { optimizer: { type: sgd } }
""", """
metadata: { name: lamb }
spec: { optimizer: { type: lamb, weight_decay: 0.1 }, schedule: { type: cosine, total_steps: 10 } }
"""], ids=["linear", "mlp", "everything", "small", "lamb"])
def test_a_job_file_means_what_it_means_to_gaccctl(daemon, client, tmp_path, text):
    """What gaccctl submits, the package finds to be the same job: word for word, except for where gaccctl has logs and working directories be."""
    yaml = pytest.importorskip("yaml")
    path = tmp_path / "job.yaml"
    path.write_text(text)
    name = yaml.safe_load(text)["metadata"]["name"]
    run([BIN / "gaccctl", "submit", "-f", path], environment(daemon), cwd=tmp_path)
    theirs = client.job(name).message.spec
    client.cancel(name)
    from gacc.spec import spec_of
    for given in (str(path), yaml.safe_load(text), spec_of(path)):
        ours = spec_of(given)
        ours.log_dir = theirs.log_dir
        if theirs.HasField("launch_command"):
            ours.launch_command.working_dir = theirs.launch_command.working_dir
        assert str(ours) == str(theirs)
    daemon.allow += [" Ended job=", " RankRestarted job=", " RankExited job="]  # mlp does not start there


@pytest.mark.parametrize("spec, text", [
    ({"optimizer": "sgdd"}, "sgd, adam"),
    ({"optimizer": SGD, "micro": 3}, "no key 'micro'"),
    ({"optimizer": {**SGD, "rate": 1}}, "no key 'optimizer.rate'"),
    ({"optimizer": SGD, "uneven": "no"}, "flush, drop, error"),
    ({"optimizer": SGD, "timeouts": {"stall_warn": "long"}}, "is no time"),
    ({"optimizer": SGD, "ranks": "two"}, "spec"),
    ({"spec": {}, "jobs": 1}, "no key 'jobs'"),
    (7, "not int"),
])
def test_a_wrong_specification_is_named(spec, text):
    from gacc.spec import spec_of
    with pytest.raises(gacc.GaccError) as e:
        spec_of(spec)
    assert text in str(e.value) and e.value.reason == "INVALID_SPEC"


def test_a_specification_in_json_and_one_that_is_not_there(client, tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"metadata": {"name": "j"}, "spec": {"ranks": 2, "optimizer": SGD}}))
    job = client.submit(path, micro_size=4)
    assert (job.name, job.message.spec.ranks, job.message.spec.micro_size, job.state) == ("j", 2, 4, "PENDING")
    with pytest.raises(gacc.GaccError) as e:
        client.submit(tmp_path / "none.json")
    assert e.value.reason == "IO_ERROR"
    assert client.submit(job.message.spec, name="k").message.spec.micro_size == 4


# ---- jobs ----


def test_a_job_from_its_beginning_to_its_end(daemon, client):
    job = client.submit(name="life", ranks=1, micro_size=2, steps=4, optimizer=SGD)
    assert (int(job), job.name, job.state, job.has_ended) == (1, "life", "PENDING", False)
    assert [j.id for j in client.jobs()] == [1] and client.job("life").id == client.job(job).id == 1
    seen = []
    watching = threading.Thread(target=lambda: seen.extend(client.steps(job)))
    watching.start()
    train(daemon, job)
    done = client.wait(job, timeout=30)
    watching.join(30)
    assert (done.state, done.has_ended, done.applied_step, done.last.window) == ("COMPLETED", True, 4, 3)
    assert [(s.window, s.applied_step, s.outcome, s.mean_loss, s.micro_count) for s in seen] == [(w, w + 1, "APPLIED", w, 2) for w in range(4)]
    assert [s.window for s in client.steps(job, 1, follow=False)] == [1, 2, 3]
    assert [s.window for s in client.history(job, 2)] == [3, 2]
    events = list(client.events(job, follow=True))
    assert [e.reason for e in events if e.reason in ("Submitted", "Completed")] == ["Submitted", "Completed"]
    assert [e.id for e in client.events(job, after_id=events[0].id)] == [e.id for e in events[1:]]
    assert client.jobs() == [] and [j.id for j in client.jobs(all=True)] == [1]


def test_the_history_has_the_whole_job_thinned_out(daemon, client):
    job = client.submit(name="long", ranks=1, micro_size=1, steps=601, optimizer=SGD)
    train(daemon, job)
    client.wait(job, timeout=30)
    found = json.loads(run([BIN / "gaccctl", "history", str(job.id), "--whole", "-o", "json"], environment(daemon)))["windows"]
    assert [w["result"]["window"] for w in found] == list(range(600, -1, -2))
    assert [found[-1]["result"]["mean_loss"], found[0]["result"]["mean_loss"]] == [0, 600]
    assert not any(w["micros"] for w in found)


def test_control(daemon, client):
    daemon.allow.append(" Ended job=")
    job = client.submit(name="held", ranks=1, micro_size=1, optimizer=SGD)
    training = threading.Thread(target=lambda: pytest.raises(gacc.GaccError, train, daemon, job, 0, 1, 0.02))
    training.start()
    client.wait(job, "RUNNING", timeout=30)
    client.wait(job, step=2, timeout=30)
    first = client.update(job, lr=0.5, clip_norm=0.0)
    wait_until("the new rate", lambda: client.job(job).last.window >= first)
    assert [s.lr for s in client.steps(job, first - 1, follow=False)][:2] == [1.0, 0.5]
    assert client.pause(job, "to look").state == "PAUSED" and "to look" in client.job(job).reason
    assert client.resume(job).state == "RUNNING"
    assert client.flush(job) >= first
    norms = client.norms(job, timeout=30)
    assert list(norms) == ["w"] and norms["w"][0] == 2
    saved = client.save_checkpoint(job, timeout=30)
    assert [c.id for c in client.checkpoints(job)] == [saved.id] and saved.state == 2
    assert client.cancel(job, "enough").state == "CANCELLED"
    training.join(30)
    assert not training.is_alive()


def test_errors(daemon, client):
    job = client.submit(name="two", ranks=2, micro_size=1, optimizer=SGD)
    start = time.monotonic()
    with pytest.raises(gacc.GaccError) as e:
        client.wait(job, step=1, timeout=0.8)
    assert e.value.code == "DEADLINE_EXCEEDED" and 0.7 < time.monotonic() - start < 20
    with pytest.raises(gacc.GaccError) as e:
        client.wait(job, "GONE")
    assert "RUNNING" in str(e.value)
    with pytest.raises(gacc.GaccError) as e:
        client.job("none")
    assert (e.value.reason, e.value.hint) == ("JOB_NOT_FOUND", "list jobs with: gaccctl jobs -a")
    with pytest.raises(gacc.GaccError) as e:
        client.submit(name="three", optimizer={"type": "adam", "eps": 0})
    assert e.value.reason == "INVALID_SPEC" and "eps" in str(e.value)
    client.cancel(job)
    daemon.allow.append(" Ended job=")


def test_a_client_outlives_a_restart_of_gaccd(supervised):
    with gacc.connect(supervised.endpoint) as client:
        job = client.submit(name="long", ranks=1, micro_size=1, steps=12, optimizer=SGD)
        seen = []
        watching = threading.Thread(target=lambda: seen.extend(client.steps(job)))
        watching.start()
        training = threading.Thread(target=train, args=(supervised, job, 0, 1, 0.1))
        training.start()
        client.wait(job, step=3, timeout=30)
        supervised.kill_gaccd()
        assert client.wait(job, timeout=60).state == "COMPLETED"
        training.join(30)
        watching.join(30)
        assert [s.window for s in seen] == list(range(12))


def test_nobody_answers(tmp_path, caplog):
    """That is told once, after 2 s."""
    start = time.monotonic()
    with pytest.raises(gacc.GaccError) as e:
        gacc.connect(str(tmp_path / "none.sock"), outage=3.5).jobs()
    assert e.value.code == "UNAVAILABLE" and 3.4 < time.monotonic() - start < 20
    assert [(r.name, r.levelname) for r in caplog.records] == [("gacc", "WARNING")] and "none.sock" in caplog.text
