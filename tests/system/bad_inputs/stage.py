# SPDX-License-Identifier: Apache-2.0
"""What the rows are sent to: a gaccd with a job of two ranks, of which one is the attacker and one the victim, and other jobs in the
states that rows need."""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
from google.protobuf import descriptor_pb2

from bad_inputs import Answer, checkpoints
from bad_inputs.caller import Caller, ask, connect
from harness import Rank, build_dir, next_line, wait_until

SGD = {"optimizer": {"type": "sgd", "lr": 0.5, "momentum": 0.9}}
TENSORS = [("w", [40, 70]), ("b", [70])]  # 11 KiB: more than one page, and no multiple of one
MICRO_SIZE = 3
KEY = 7  # data_key of the attacker's first micro-batch of each window
NOBODY = 65534


def gradients(rank, window, micro):
    random = np.random.default_rng([rank, window, micro])
    return [random.standard_normal(np.prod(shape), np.float32) for _, shape in TENSORS]


class Pair:
    """Two trainers of one job. `first` pushes the first micro-batches of a window, `rest` the others, and returns what can be
    compared: the outcome's numbers and the parameters' bytes."""

    def __init__(self, daemon, name):
        self.job = daemon.submit({**SGD, "name": name, "ranks": 2, "micro_size": MICRO_SIZE})
        self.ranks = [Rank(daemon, self.job, r, TENSORS, 2) for r in range(2)]
        for r in self.ranks:
            r.start({name: np.zeros(shape, np.float32) for name, shape in TENSORS})

    def _push(self, micro):
        for r in self.ranks:
            r.push(gradients(r.rank, r.window, micro), slot=micro % 2, weight=1 + micro, loss=micro, data_key=KEY + micro)

    def first(self):
        self._push(0)

    def rest(self):
        for micro in range(1, MICRO_SIZE):
            self._push(micro)
        [step, _] = [r.wait_step().result for r in self.ranks]
        return ([step.outcome, step.micro_count, step.total_weight, step.grad_norm, step.mean_loss, step.params_digest],
                bytes(self.ranks[1].memory[2, 0]))

    def close(self):
        for r in self.ranks:
            r.detach()
            r.close()


class Stage:
    def __init__(self, daemon, attacked):
        self.daemon, self.caller = daemon, Caller(daemon.endpoint)
        self.client, self.types = self.caller.client, self.caller.client.types
        self.attacker, self.victim = attacked.ranks
        self.job, self.attach_socket = attacked.job, self.attacker.attached.attach_socket
        self.other_user = self._start_other_user() if os.geteuid() == 0 else None
        self.open = contextlib.ExitStack()
        self.jobs = {"attacked": attacked.job}
        self.sessions = {"own": self.attacker.session, "victim": self.victim.session}
        self._make_jobs()
        self._make_sessions()
        self.checkpoint = self._make_checkpoint()

    def _make_jobs(self):
        """`fresh` has no tensors, `unfilled` no parameters, `ended` is over."""
        for name in ("fresh", "unfilled", "ended"):
            self.jobs[name] = self.daemon.submit({**SGD, "name": name, "ranks": 2, "micro_size": 2})
            rank = self.open.enter_context(contextlib.closing(
                Rank(self.daemon, self.jobs[name], 0, [("w", [3000])], 2, inline=True, client=self.client)))
            if name == "unfilled":
                rank.register()
            else:
                rank.attach(2, wants_shared_memory=True)
            self.sessions[name] = rank.session
        self.daemon.cancel(self.jobs["ended"])

    def _make_sessions(self):
        """`fenced` is older than another of its rank; the rest never was one."""
        rank = Rank(self.daemon, self.jobs["fresh"], 1, [], 2, inline=True, client=self.client)
        self.sessions["fenced"] = self.types.Session.FromString(rank.session.SerializeToString())
        self.fenced_generation = rank.attached.generation
        rank.attach(2)
        own, victim = self.sessions["own"], self.sessions["victim"]
        for name, session_id, token in (
                ("guessed", own.id, bytes(range(16))), ("zero token", own.id, bytes(16)), ("no token", own.id, b""),
                ("short token", own.id, own.token[:15]), ("long token", own.id, own.token + b"x"),
                ("own token, victim's id", victim.id, own.token), ("victim's token, own id", own.id, victim.token),
                ("no such rank", own.id + 2, own.token), ("no such job", own.id + (1 << 40), own.token),
                ("highest id", 2**64 - 1, own.token)):
            self.sessions[name] = self.types.Session(id=session_id, token=token)

    def _make_checkpoint(self):
        """Inside the second window of a job that is over; its path."""
        job = self.daemon.submit({**checkpoints.ADAM, "name": "saved"})
        with Rank(self.daemon, job, 0, [("w", [4]), ("b", [3])], 1, inline=True, client=self.client) as rank:
            rank.start({"w": np.ones(4), "b": np.ones(3)})
            for micro in range(3):
                rank.push([np.full(4, micro), np.ones(3)])
                if micro == 1:
                    rank.wait_step()
            saved = self.client.jobs.SaveCheckpoint(job=str(job), inside_window=True, wait=True, request_id=os.urandom(16)).checkpoint
        wait_until("the end of a job whose rank has left", lambda: self.daemon.state(job) == "COMPLETED")
        assert saved.carried_micros == 1
        return saved.path

    # -- ways of sending --

    def method(self, name):
        """"GradientService/Push": path, kind of stub, request type."""
        service, method = name.split("/")
        m = self.types.pool.FindServiceByName(f"gacc.v1.{service}").methods_by_name[method]
        proto = descriptor_pb2.MethodDescriptorProto()
        m.CopyToProto(proto)
        kind = f"{'stream' if proto.client_streaming else 'unary'}_{'stream' if proto.server_streaming else 'unary'}"
        return f"/gacc.v1.{name}", kind, self.types.of(m.input_type)

    def bytes_of(self, request_type, message):
        if callable(message):
            message = message(self)
        if isinstance(message, bytes):
            return message
        return (request_type(**message) if isinstance(message, dict) else message).SerializeToString()

    def call(self, method, messages, timeout=20, **how):
        path, kind, request_type = self.method(method)
        return self.caller.call(path, kind, [self.bytes_of(request_type, m) for m in messages], timeout, **how)

    def _start_other_user(self):
        self.other_user = subprocess.Popen(
            [sys.executable, pathlib.Path(__file__).parent / "caller.py", self.daemon.endpoint, self.attach_socket, str(NOBODY)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.call_as_nobody("NodeService/GetNode", {}).code == "OK"
        return self.other_user

    def as_nobody(self, request):
        """The request (see caller.py) made by another user's process."""
        self.other_user.stdin.write(json.dumps(request) + "\n")
        self.other_user.stdin.flush()
        return Answer(*json.loads(next_line(self.other_user)))

    def call_as_nobody(self, method, message):
        path, kind, request_type = self.method(method)
        return self.as_nobody({"path": path, "kind": kind, "messages": [self.bytes_of(request_type, message).hex()], "timeout": 20})

    def packet(self, packet, ancillary=()):
        with connect(self.attach_socket) as s:
            return ask(self.types, s, packet, ancillary)

    def map_request(self, version=1, session="own"):
        return self.types.MapRequest(version=version, session=self.sessions[session]).SerializeToString()

    def program(self, *arguments, **env):
        """gaccd or gaccctl, which must end by itself: the exit status is the code."""
        done = subprocess.run([build_dir() / "bin" / arguments[0], *arguments[1:]], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", timeout=20, env={**os.environ, **env})
        return Answer(f"exit {done.returncode}", "", done.stderr, done.stderr)

    def file(self, text, name="input"):
        path = self.daemon.dir / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    # -- gaccd itself --

    def last_line(self, pattern):
        """Of gaccd's log."""
        return wait_until(f"{pattern!r} in the log", lambda: [x for x in self.daemon.log().splitlines() if re.search(pattern, x)])[-1]

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.daemon.pid}/fd"))

    def wait_descriptors(self, count):
        wait_until(lambda: f"{count} descriptors of gaccd: it has {self.descriptors()}: " + ", ".join(
            sorted(os.readlink(e) for e in pathlib.Path(f"/proc/{self.daemon.pid}/fd").iterdir())),
                   lambda: self.descriptors() <= count, 10)

    def close(self):
        if self.other_user:
            self.other_user.stdin.close()
            self.other_user.wait(10)
            self.other_user.stdout.close()
        for name in ("fresh", "unfilled"):
            self.daemon.cancel(self.jobs[name])
        self.open.close()
        self.client.close()
