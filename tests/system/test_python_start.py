# SPDX-License-Identifier: Apache-2.0
"""How a program with the Python package begins: the import, who it is, and the example and the loops of the documents as users run them."""
import re
import subprocess
import sys

import numpy as np
import pytest

from python_package import environment, gacc
from test_examples import BIN, EXAMPLES, PROGRAMS, linear_in_numpy, parameters, run

LINEAR = EXAMPLES / "python/linear.py"


# ---- importing ----


def test_threads_that_begin_at_once_get_the_same_classes():
    """Each rank of a program may be a thread. Messages of two sets of classes do not go together."""
    script = """
import sys, threading
from gacc import messages
sys.setswitchinterval(1e-6)
begin, seen = threading.Barrier(8), []
def look():
    begin.wait()
    seen.append((messages.types(), messages.types().JobSpec, messages.types().named("gacc.v1.TensorSpec")))
threads = [threading.Thread(target=look) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
print([len({id(s[i]) for s in seen}) for i in range(3)])
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == ("[1, 1, 1]\n", ""), done


def test_importing_is_quick_and_imports_neither_grpc_nor_torch():
    code = "import time, sys; t = time.process_time(); import gacc; print(time.process_time() - t, 'grpc' in sys.modules, 'torch' in sys.modules)"
    seconds, *heavy = min(run([sys.executable, "-c", code], environment()).split() for _ in range(3))
    assert heavy == ["False", "False"] and float(seconds) < 0.3


def test_names_that_are_not_there():
    assert not hasattr(gacc, "nothing") and set(dir(gacc)) >= {"GaccError"}
    for name in gacc.__all__:
        assert getattr(gacc, name)
    with pytest.raises(AttributeError):
        gacc.jobs


# ---- who am I ----


@pytest.mark.parametrize("env, given, want", [
    ({"GACC_RANK": "1", "GACC_WORLD_SIZE": "2", "RANK": "3", "WORLD_SIZE": "4", "GACC_JOB_ID": "7"}, {}, ("7", 1, 2)),
    ({"RANK": "3", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "t"}, {}, ("t", 3, 4)),
    ({"SLURM_PROCID": "2", "SLURM_NTASKS": "3", "PMI_RANK": "0", "PMI_SIZE": "9"}, {}, ("", 2, 3)),
    ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, {}, ("", 1, 2)),
    ({"PMI_RANK": "1", "PMI_SIZE": "2"}, {"job": 5}, ("5", 1, 2)),
    ({"RANK": "1", "WORLD_SIZE": "4"}, {"rank": 2}, ("", 2, 4)),
    ({"RANK": "", "WORLD_SIZE": ""}, {}, ("", 0, 1)),
    ({}, {"rank": 1, "world_size": 3}, ("", 1, 3)),
])
def test_rank_and_job_from_the_environment(env, given, want):
    from gacc.environment import identity
    assert identity(**given, env=env)[:3] == want


@pytest.mark.parametrize("env, given, text", [
    ({"RANK": "1"}, {}, "RANK is set but WORLD_SIZE is not"),
    ({"RANK": "x", "WORLD_SIZE": "2"}, {}, "RANK=x is not a number"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, {}, "rank 2 (from RANK) is not in a world of 2"),
    ({}, {"world_size": 2}, "no rank"),
])
def test_a_rank_that_is_not_known(env, given, text):
    from gacc.environment import identity
    with pytest.raises(gacc.GaccError) as e:
        identity(**given, env=env)
    assert text in str(e.value) and e.value.reason == "INVALID_ARGUMENT"


# ---- the example ----


@pytest.mark.parametrize("mailbox", ["1", "0"])
def test_the_example_ends_with_the_bits_of_the_others(daemon, mailbox):
    out = run([BIN / "gaccctl", "run", "-n", 2, "-f", EXAMPLES / "linear.yaml", "--", sys.executable, LINEAR], environment(daemon, GACC_MAILBOX=mailbox))
    assert set(parameters(out)) == {linear_in_numpy()}


def test_the_example_beside_a_rank_in_c(daemon):
    job = daemon.submit({"name": "linear", "ranks": 2, "micro_size": 4, "steps": 40, "optimizer": {"type": "sgd", "lr": 0.01, "momentum": 0.5}})
    programs = [[sys.executable, LINEAR], PROGRAMS["c"]]
    ranks = [subprocess.Popen([str(c) for c in p], stdout=subprocess.PIPE, text=True, env=environment(daemon, RANK=r, WORLD_SIZE=2, GACC_JOB_ID=job))
             for r, p in enumerate(programs)]
    outputs = [p.communicate(timeout=60)[0] for p in ranks]
    assert [parameters(o) for o in outputs] == [[linear_in_numpy()]] * 2


def test_the_example_alone(daemon):
    """No launcher: it makes its job itself."""
    assert parameters(run([sys.executable, LINEAR], environment(daemon))) == [linear_in_numpy(ranks=1)]
    assert daemon.state(1) == "COMPLETED"


PRELUDE = """
import numpy as np, gacc
X = np.random.default_rng(1).integers(-3, 4, (96, 8)).astype(float)
def batch_of(window, micro, rank):
    x = X[(4 * window + micro) % 24 * 4:][:4]
    return x, x.sum(1)
def backward(parameters, batch):
    x, y = batch
    error = x @ parameters["weight"] + parameters["bias"] - y
    return (error ** 2).mean() / 2, {"weight": error @ x / len(y), "bias": error.mean()[None]}
"""


@pytest.mark.parametrize("document", ["docs/python.md", "README.md"])
def test_the_loop_of_the_guide_learns(daemon, document):
    text = (EXAMPLES.parents[1] / document).read_text()
    loop = next(block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "with gacc.attach(" in block)
    job = {} if "SPEC" in loop else {"GACC_JOB_ID": daemon.submit({"ranks": 1, "micro_size": 4, "steps": 40, "optimizer": {"type": "sgd", "lr": 0.05}})}
    tail = "\nprint(abs(session_end - 1).max())"
    loop += "    session_end = session.parameters['weight'].copy()\n"
    assert float(run([sys.executable, "-c", PRELUDE + loop + tail], environment(daemon, **job)).splitlines()[-1]) < 0.2


NOTEBOOK = """
import signal, sys
import gacc, numpy as np
taken = lambda: {s: signal.getsignal(s) for s in signal.valid_signals()}
before, space = taken(), {"gacc": gacc, "np": np, "interrupt": False}
cell = '''
session = gacc.attach("notebook", 0, 1, spec={"micro_size": 2, "optimizer": {"type": "sgd", "lr": 1.0}})
session.register({"w": ("f32", (2,))})
if session.params_needed:
    session.upload([np.zeros(2)])
for micro in session.missing:
    session.fill([np.ones(2)])
    session.push()
    if interrupt:
        raise KeyboardInterrupt
step = session.wait()
'''
for interrupt in 0, 1, 0, 0:
    space["interrupt"] = interrupt
    try:
        exec(cell, space)
    except KeyboardInterrupt:
        continue
    print(space["session"].job_id, space["step"].applied_step, space["step"].micro_count, *space["session"].parameters["w"])
space["session"].detach()
assert taken() == before, "a signal's handler is another one"
"""


def test_cells_of_a_notebook_that_run_again(daemon):
    """Without an end in between, and after an interrupt inside a window: the new session takes the place of the one before. No signal is taken."""
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], env=environment(daemon), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1 1 2 -1.0 -1.0\n1 2 2 -2.0 -2.0\n1 3 2 -3.0 -3.0\n"), done


@pytest.mark.parametrize("pushes", [0, 1, 2], ids=["nothing", "half a window", "a window"])
def test_a_script_that_is_run_again_at_once(daemon, pushes):
    """Under the same name, as a notebook's cell is. The job before it ends because its rank has left; it is not joined again, and the new one begins."""
    spec, jobs = {"name": f"again-{pushes}", "ranks": 1, "micro_size": 2, "optimizer": {"type": "sgd", "lr": 1.0}}, set()
    for _ in range(20):
        with gacc.attach(spec=spec, endpoint=daemon.endpoint) as session:
            session.register({"w": ("f32", (1,))})
            assert session.params_needed and session.upload([np.zeros(1)])
            for micro in range(pushes):
                session.fill([np.ones(1)])
                assert session.push()[:3] == ("counted", 0, micro)
            jobs.add(session.job_id)
    assert len(jobs) == 20


def test_a_session_that_outlives_its_modules(daemon):
    """Libraries that keep objects until the process ends leave them to a time when modules are empty: nothing is written on standard error."""
    code = """
import gacc, gacc.session
session = gacc.attach(spec={"name": "outlived", "optimizer": "sgd"})
session.register({"w": ("f32", (1,))})
session.detach()
gacc.session.sys = None
del session
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(daemon), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done
