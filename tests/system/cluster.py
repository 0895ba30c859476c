# SPDX-License-Identifier: Apache-2.0
"""Several gaccds that are one cluster, on this machine: the first coordinates, the others dial it.

    with Cluster(3) as c:
        job = c.submit({"ranks": 3, "parts": 3, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.1}})
        with c.killed("b"):
            ...                                  # its memory is kept
    c.nodes is {"a": Node, "b": Node, "c": Node}; each one is a harness.Daemon with a folder, sockets and state of its own.
"""
import contextlib
import os
import pathlib
import secrets
import signal
import string
import subprocess

from harness import Daemon, Rank, free_port, wait_until

MAKE_CERTS = pathlib.Path(__file__).parents[2] / "deploy/make-certs.sh"


class Node(Daemon):
    """One gaccd of a cluster, supervised. `coordinator`: the node that it dials, or None."""

    def __init__(self, name, coordinator, conf, **how):
        allow = [*how.pop("allow", []), " NodeSuspect", " NodeDown", " NodeAwaited", " LinkLost", " CoordinatorIsolated"]  # nodes die in these tests, and stop one after the other
        super().__init__(supervise=True, conf={"node.name": name, "engine.threads": 1, **conf}, allow=allow, **how)
        self.name, self.coordinator = name, coordinator


class Cluster:
    """`n` nodes "a", "b", ... that know each other by a token, or with `tls` by certificates of deploy/make-certs.sh. `conf` holds for each, `node_conf` ({"b": {...}}) for that one besides; `kinds` has what makes a node, if it is not Node. `allow` as in Daemon: what each one's
    log may have; Node.allow may be extended later. At the end of the `with` the coordinator stops last, and each must have left nothing."""

    def __init__(self, n, tls=False, conf=None, node_conf=None, kinds=None, **how):
        assert 1 <= n <= len(string.ascii_lowercase)
        self.port, self.names = free_port(), string.ascii_lowercase[:n]
        self.address = f"127.0.0.1:{self.port}"
        self.nodes = {}
        for name in self.names:
            kind = (kinds or {}).get(name, Node)
            self.nodes[name] = kind(name=name, coordinator=self.nodes.get("a"), conf={**(conf or {}), **(node_conf or {}).get(name, {})}, **how)
        for node in self.nodes.values():
            node.conf["cluster.coordinator" if node.coordinator else "listen.tcp"] = self.address
        self._certify() if tls else self._share_token()

    def _certify(self):
        """In the coordinator's folder, with one for an administrator."""
        self.certs = self.coordinator.dir / "certs"
        roles = {name: "node" if node.coordinator else "coordinator" for name, node in self.nodes.items()}
        subprocess.run(["sh", MAKE_CERTS, self.certs, *(f"{role}/{name}=127.0.0.1" for name, role in roles.items()), "admin/root"],
                       check=True, capture_output=True, timeout=60)
        for name, node in self.nodes.items():
            node.conf.update({"tls.cert": self.certs / f"{roles[name]}-{name}.pem", "tls.key": self.certs / f"{roles[name]}-{name}.key",
                              "tls.ca": self.certs / "ca.pem"})

    def _share_token(self):
        """A file of its own for each node, as on machines of their own."""
        token = secrets.token_hex(32)
        for name, node in self.nodes.items():
            path = node.dir / "token"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
                f.write(token)
            node.conf["cluster.token_file" if node.coordinator else "listen.token_file"] = path

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for node in self.nodes.values():
                stack.enter_context(node)
            for node in self.nodes.values():
                if node.coordinator:
                    wait_until("the link", lambda: "linked to the coordinator" in node.log())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind, value, traceback):
        return self._stack.__exit__(kind, value, traceback)

    def __getitem__(self, name):
        return self.nodes[name]

    @property
    def coordinator(self):
        return self.nodes["a"]

    # -- deaths --

    def kill(self, name):
        """SIGKILL to that gaccd, whose supervisor keeps the memory and starts the next one. Returns when that answers."""
        node = self.nodes[name]
        node.kill_gaccd()
        node.wait_ready()

    @contextlib.contextmanager
    def dead(self, name):
        """That gaccd is dead inside of the `with`; at the end its supervisor may start the next one."""
        node = self.nodes[name]
        os.kill(node.supervisor_pid, signal.SIGSTOP)
        try:
            node.kill_gaccd()
            yield node
        finally:
            os.kill(node.supervisor_pid, signal.SIGCONT)

    @contextlib.contextmanager
    def killed(self, name):
        """That gaccd is dead inside of the `with`, and is started with its memory at the end."""
        with self.dead(name) as node:
            yield node
        node.wait_ready()

    @contextlib.contextmanager
    def stopped(self, name):
        """That gaccd says nothing, and its connections stay open: the case that only silence tells. Shorter than its supervisor's patience (30 s)."""
        pid = wait_until("gaccd's pid", lambda: self.nodes[name].pid)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield self.nodes[name]
        finally:
            os.kill(pid, signal.SIGCONT)

    def lose(self, name):
        """That gaccd, its engines and its supervisor die, and with them the memory; its state_dir is left. The node may be started again with
        nodes[name].start()."""
        self.nodes[name].kill_supervisor()

    # -- jobs --

    def submit(self, spec, nodes=None, **how):
        """Id of a new job whose parts lie on `nodes` (all of them); one part for each unless the specification says another number."""
        nodes = list(self.names if nodes is None else nodes)
        return self.coordinator.submit({"parts": len(nodes), "nodes": ",".join(nodes), **spec}, **how)

    def node_of_part(self, part, parts, nodes=None):
        """Part i of D lies on the i * N / D th of N nodes."""
        nodes = list(self.names if nodes is None else nodes)
        return self.nodes[nodes[part * len(nodes) // parts]]

    def node_of_rank(self, rank, ranks, parts, nodes=None):
        """Part i has the ranks from i * R / D on."""
        part = next(i for i in range(parts) if rank < (i + 1) * ranks // parts)
        return self.node_of_part(part, parts, nodes)

    def rank(self, job, rank, ranks, parts, tensors, nodes=None, **how):
        """A trainer at the node of its part."""
        return Rank(self.node_of_rank(rank, ranks, parts, nodes), job, rank, tensors, ranks=ranks, **how)
