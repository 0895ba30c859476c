# SPDX-License-Identifier: Apache-2.0
"""The job of the fault tests: a small training whose result tells of every micro-batch that was lost, doubled or mixed up.

Tensors: `ledger` has one element per micro-batch of the whole job, and micro-batch g has a gradient of 1 at element g and of 0 at the
others. With SGD, learning rate 1 and reduction sum the element's value at the end is known: minus its weight, times what
momentum makes of it, exactly. `body` is the training proper: its gradient depends on the parameters, so that an error
anywhere spreads. Weights are not 1, and differ.

Everything follows from (window, micro, rank) and the parameters, so a run with faults must end in the bits of one without.
"""
import json

import numpy as np

import harness


class Workload:
    def __init__(self, ranks=2, micro_size=3, steps=6, elements=4096, optimizer="sgd", momentum=0.5, slots=2, **spec):
        self.arguments = dict(ranks=ranks, micro_size=micro_size, steps=steps, elements=elements, optimizer=optimizer,
                              momentum=momentum, slots=slots, **spec)
        self.ranks, self.micro_size, self.steps, self.elements = ranks, micro_size, steps, elements
        self.is_sgd, self.momentum = optimizer == "sgd", momentum
        hyper = ({"type": "sgd", "lr": 1, "momentum": momentum} if self.is_sgd else
                 {"type": optimizer, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01})
        self.spec = {"ranks": ranks, "micro_size": micro_size, "steps": steps, "slots_per_rank": slots,
                     "reduction": "sum" if self.is_sgd else "weighted_mean", "optimizer": hyper, **spec}
        self.ledger_size = steps * ranks * micro_size
        self.tensors = [("ledger", [self.ledger_size]), ("body", [elements])]
        self.noise = np.random.default_rng(1).standard_normal(elements, np.float32) * np.float32(1e-3)

    def to_json(self):
        return json.dumps(self.arguments)

    @classmethod
    def from_json(cls, text):
        return cls(**json.loads(text))

    def initial(self):
        return {"ledger": np.zeros(self.ledger_size, np.float32),
                "body": np.random.default_rng(2).standard_normal(self.elements, np.float32)}

    def index(self, window, micro, rank):
        return (window * self.micro_size + micro) * self.ranks + rank

    def weight(self, window, micro, rank):
        """A multiple of 1/4 in [0.5, 3.25]: sums of these are exact."""
        return 0.5 + 0.25 * ((5 * window + 3 * micro + 7 * rank) % 12)

    def key(self, window, micro, rank):
        return 1 + self.index(window, micro, rank)

    def gradients(self, params, window, micro, rank):
        ledger = np.zeros(self.ledger_size, np.float32)
        ledger[self.index(window, micro, rank)] = 1
        turned = np.roll(self.noise, 31 * self.index(window, micro, rank))
        return {"ledger": ledger, "body": turned + np.float32(1e-3) * params["body"]}

    def push(self, trainer, params, micro, **what):
        """Computes and pushes one micro-batch of the trainer's window."""
        at = trainer.window, micro, trainer.rank
        return trainer.push(self.gradients(params, *at), micro=micro, **{**self.header(trainer.window, micro, trainer.rank),
                                                                         **what})

    def header(self, window, micro, rank):
        at = window, micro, rank
        return dict(weight=self.weight(*at), loss=float(self.index(*at)), data_key=self.key(*at))

    # -- what must come out --

    def check_ledger(self, params):
        """Each micro-batch once, with its weight. With momentum m and n steps, 1 + m + .. + m^(n-1) must be exact in f32."""
        assert self.is_sgd
        expected = np.zeros(self.ledger_size, np.float32)
        for window in range(self.steps):
            factor = sum(self.momentum ** i for i in range(self.steps - window))
            for micro in range(self.micro_size):
                for rank in range(self.ranks):
                    expected[self.index(window, micro, rank)] = -self.weight(window, micro, rank) * factor
        wrong = np.flatnonzero(params["ledger"] != expected)
        assert not len(wrong), [(int(i), float(params["ledger"][i]), float(expected[i])) for i in wrong[:10]]

    def check(self, params):
        """The bits of the run without faults, and the ledger."""
        want = reference(self)
        for name, array in want.items():
            same = params[name].view(np.uint32) == array.view(np.uint32)
            assert same.all(), (f"{name}: {np.count_nonzero(~same)} of {same.size} elements differ, the first at "
                                f"{np.flatnonzero(~same)[0]}: {params[name][~same][:3]}, not {array[~same][:3]}")
        if self.is_sgd:
            self.check_ledger(params)


def train(trainer, work, push=None):
    """One rank's part, from wherever it stands; the parameters when the job is done. push(params, micro) is work.push."""
    done = False
    while not done:
        params = trainer.params() if trainer.missing else None
        for micro in trainer.missing:
            push(params, micro) if push else work.push(trainer, params, micro)
        done = trainer.wait_step().job_done
    return trainer.params()


_references = {}


def reference(work):
    """Final parameters of the job without faults, on a daemon of its own; computed once per workload."""
    key = work.to_json()
    if key not in _references:
        with harness.Daemon() as d:
            _references[key] = run_in_order(d, work)
    return _references[key]


def run_in_order(daemon, work, push=None):
    """The whole job in one thread: canonical order needs no concurrency. push(trainer, params, micro) is work.push."""
    job = daemon.submit(work.spec)
    trainers = [harness.Rank(daemon, job, rank, work.tensors, work.ranks) for rank in range(work.ranks)]
    try:
        for t in trainers:
            t.register()
        trainers[0].put_params(work.initial())
        for t in trainers:
            t.ready()
        done = False
        while not done:
            params = trainers[0].params()
            for micro in range(work.micro_size):
                for t in trainers:
                    push(t, params, micro) if push else work.push(t, params, micro)
            done = [t.wait_step() for t in trainers][0].job_done
        params = trainers[0].params()
        for t in trainers:
            t.detach()
        return params
    finally:
        for t in trainers:
            t.close()
