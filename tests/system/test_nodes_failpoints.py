# SPDX-License-Identifier: Apache-2.0
"""Failpoints of a step of a job that has a part on each of two nodes, in a build with -DGACC_FAILPOINTS: the process that passes the point dies, on
the node that coordinates or on the other one, or stops in the middle of an exchange. The job must come through with the bits of a run without
faults. test_failpoints.py has the other points and actions, on one node.

GACC_NODES_POINTS: how many cases are drawn by GACC_SAMPLE (24); "all" of them by tests/long.sh nodes. Of the points of trainers each has one case in any
case, on the node that GACC_SAMPLE draws.
"""
import os
import random
import re
import signal
import time

import pytest

from cluster import Cluster
from failpoint_job import PARTS, RANKS, STEPS, WAYS, Control, Trainers, check_ledger, exact_result, spec
from harness import children, parent_and_state, wait_until
from test_failpoints import (AFTER_THE_END, AT_FAILED_ATTEMPT, AT_OPERATORS_CALL, AT_RESTART, AT_STOP, AT_TICK, CASE_S, EXPECTED, LAUNCHED, LOADING, POINTS,
                             SAVING, WITH_CLIENT_OPTIMIZER, Runner)
from test_nodes import ALLOW, QUICK

pytestmark = pytest.mark.failpoints

STOPPED_S = 1.5  # longer than coll.stall
IN_EXCHANGE = ("engine_board_taken", "engine_comm_up", "engine_piece_summed", "engine_reduce_done")
NOT_IN_A_STEP = AT_RESTART | AT_STOP | AT_OPERATORS_CALL | AT_TICK | AFTER_THE_END | LAUNCHED | AT_FAILED_ATTEMPT | {"engine_armed_due"}
PASSED = [(name, process) for name, process, _, _ in POINTS if process in ("engine", "gaccd", "coordinator") and name not in NOT_IN_A_STEP and
          SAVING not in name and LOADING not in name]
# Rank 0 gives the parameters, to the part on a; that on b takes them from there. The job is sharded, and so small that b has all to update.
ONLY_ON = {"engine_params_put": "a", "engine_params_ready": "a", "engine_fill_begun": "b", "engine_fill_done": "b",
           **dict.fromkeys(("engine_undo_saved", "engine_undo_held", "engine_chunk_updated", "engine_chunk_done", "engine_share_piece"), "b"),
           **{name: "a" for name, process in PASSED if process == "coordinator"}}
ALL = ([(where, name, "crash") for where in "ab" for name, _ in PASSED if where in ONLY_ON.get(name, "ab")] +
       [(where, name, "stop") for where in "ab" for name in IN_EXCHANGE])


CLIENT = [name for name, process, _, _ in POINTS if process == "client"]


def clients_drawn():
    return [(random.Random(f"{os.environ.get('GACC_SAMPLE', 'none')} {name}").choice("ab"), name, "crash") for name in CLIENT]


def drawn():
    n = os.environ.get("GACC_NODES_POINTS", "24")
    return ALL if n == "all" else sorted(random.Random(os.environ.get("GACC_SAMPLE", "none")).sample(ALL, int(n)))


class Worker:
    """Two nodes, and the cases that are run on them, one after the other."""

    def __init__(self):
        self.cluster = Cluster(2, conf=QUICK, allow=[*EXPECTED, *ALLOW]).__enter__()
        self.control = {name: Control(node.dir / "run/failpoints.sock") for name, node in self.cluster.nodes.items()}

    def stop(self):
        for control in self.control.values():
            control.close()
        self.cluster.__exit__(None, None, None)

    def throw_away(self):
        for node in self.cluster.nodes.values():
            node.test_failed = True
        for control in self.control.values():
            control.close()
        self.cluster.__exit__(AssertionError, None, None)

    def hits(self, where):
        return self.control[where].hits()

    def let_go_on(self, node):
        """The engine that has stopped there, after as long as others do not wait for it."""
        for pid in children(node.pid or 0):
            if parent_and_state(pid)[1] == "T":
                time.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)

    def train(self, where=None, point=None, action=None, skip=0, by_rpc=WAYS[0]):
        """One job, with the point armed on that node; that of a trainer for the victim, whose part is there. Returns the ranks' results."""
        for control in self.control.values():
            control.do("disarm all")
        if point:
            self.control[where].do(f"arm {point} {action} skip {skip} count 1")
        a, b = self.cluster["a"], self.cluster["b"]
        client_optimizer, is_client = point in WITH_CLIENT_OPTIMIZER, point in CLIENT
        first, second = (b, a) if is_client and where == "b" else (a, b)
        job = a.submit({**spec(client_optimizer, PARTS), "nodes": f"{first.name},{second.name}", **({"sharding": "none"} if client_optimizer else {})})
        trainers = Trainers(a, job, client_optimizer, is_client or point is None, by_rpc, PARTS, [first, first, second, second])
        try:
            end = time.monotonic() + CASE_S
            while not trainers.poll(None):
                assert time.monotonic() < end, f"not done after {CASE_S} s:\n{trainers.heard()}"
                if action == "stop":
                    self.let_go_on(self.cluster[where])
                time.sleep(0.01)
            wait_until("the job's end", lambda: a.state(job) in ("COMPLETED", "FAILED", "NODE_FAIL"), CASE_S)
            assert a.state(job) == "COMPLETED", a.get_job(job).reason
            assert not is_client or trainers.codes.count(-signal.SIGKILL) == 1, trainers.codes
        finally:
            trainers.kill()
        return trainers.results()


class NodesRunner(Runner):
    new_worker = Worker

    def without_faults(self, worker):
        """How often each point is passed on each node."""
        results = worker.train()
        assert len(results) == RANKS and set(results) == {exact_result(PARTS)}
        passed = {where: {name: n for name, (n, _) in worker.hits(where).items()} for where in "ab"}
        missed = [(where, name) for where, name in [(where, name) for where, name, _ in ALL] + [("a", name) for name in CLIENT]
                  if not passed[where][name] and name not in WITH_CLIENT_OPTIMIZER]
        assert not missed, f"no step passes {missed}"
        return passed

    def run(self, worker, where, point, action):
        n = self.reference.result()["a" if point in CLIENT else where][point]  # the victim's part was on a
        results = worker.train(where, point, action, self.skip(point, n), self.way(point, action) if point in CLIENT else WAYS[0])
        assert worker.hits(where)[point][1] >= 1, f"{point} was never hit on {where}"
        assert results
        for data in results:
            check_ledger(data, point in WITH_CLIENT_OPTIMIZER)
            assert point in WITH_CLIENT_OPTIMIZER or data == exact_result(PARTS), "other bits than without faults"


def test_gaccd_and_engine_of_a_node_die_while_it_saves(tmp_path):
    """The files that were begun are not in the way of the next try. The engine dies first, and nobody hears of it."""
    worker = Worker()
    a, b = worker.cluster["a"], worker.cluster["b"]
    worker.control["b"].do("arm engine_save_write_before sleep 3000 count 1")
    job = a.submit({**spec(False, PARTS), "nodes": "b,a", "checkpoint": {"at_end": True, "dir": str(tmp_path / "saved")}})
    trainers = Trainers(a, job, parts=PARTS, place=[b, b, a, a])
    try:
        wait_until("the engine writes", lambda: trainers.poll(None) or worker.hits("b")["engine_save_write_before"][1])
        assert list((tmp_path / "saved").glob(".*.partial"))
        engine, = b.engine_pids()
        b.engines_killed = True
        os.kill(b.pid, signal.SIGSTOP)
        os.kill(engine, signal.SIGKILL)
        b.kill_gaccd()
        wait_until("the trainers", lambda: trainers.poll(None))
        wait_until("the job's end", lambda: a.state(job) == "COMPLETED")
        assert [k.applied_step for k in a.client.jobs.ListCheckpoints(job=str(job)).checkpoints if k.state == 2] == [STEPS]
        assert not list((tmp_path / "saved").glob(".*.partial"))
    finally:
        trainers.kill()
        worker.stop()


@pytest.fixture(scope="module")
def runner(request):
    r = NodesRunner([tuple(item.callspec.params["case"]) for item in request.session.items
                     if item.module is request.module and item.originalname in ("test_point_on_a_node", "test_a_trainers_point_on_a_node")])
    yield r
    r.stop()


@pytest.mark.parametrize("case", drawn(), ids=lambda case: re.sub(",", " ", ",".join(case)))
def test_point_on_a_node(runner, case):
    runner.case[case].result()


@pytest.mark.parametrize("case", clients_drawn(), ids=lambda case: re.sub(",", " ", ",".join(case)))
def test_a_trainers_point_on_a_node(runner, case):
    runner.case[case].result()
