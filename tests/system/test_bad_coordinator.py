# SPDX-License-Identifier: Apache-2.0
"""Every row of bad_inputs/coordinator.py, said to a node over its link to a real coordinator, between real orders: what it says of it, that it is the same
process afterwards, that it is linked again, and that the job whose part it has goes on with the bits that exact.py says.
"""
import contextlib
import pathlib
import queue
import re
import subprocess
import threading
import time
from concurrent import futures

import grpc
import pytest

from bad_inputs import Answer, coordinator
from cluster import Cluster
from harness import known_types, wait_until
from test_bad_nodes import LINK, MESSAGE, check
from test_nodes import ALLOW, QUICK, over
from test_parts import spec

ROOT = pathlib.Path(__file__).resolve().parents[2]
GROUPS = {"link": coordinator.LINK, "part": coordinator.PART}


def order_message():
    made = subprocess.run(["protoc", f"-I{ROOT / 'proto'}", "--include_imports", "--descriptor_set_out=/dev/stdout", "gacc/internal/v1/cluster.proto"],
                          check=True, capture_output=True)
    from google.protobuf import descriptor_pb2
    for file in descriptor_pb2.FileDescriptorSet.FromString(made.stdout).file:
        with contextlib.suppress(TypeError):  # it is there already
            known_types().pool.Add(file)
    return known_types().of(known_types().pool.FindMessageTypeByName("gacc.internal.v1.Order"))


ORDER = order_message()


class Between:
    """Node b dials it, and it dials the coordinator: what the two say goes through, and what the rows say comes in between."""

    def __init__(self, cluster):
        self.cluster, self.down, self.last_order = cluster, None, None
        self.between_messages = threading.Condition()  # a message may have several frames: a row's belongs to none of them
        self.rest = 0  # bytes of the coordinator's message that are still to come
        self.server = grpc.server(futures.ThreadPoolExecutor(8))
        handler = grpc.stream_stream_rpc_method_handler(self._link)
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("gacc.internal.v1.PeerService", {"Link": handler})])
        cluster["b"].conf["cluster.coordinator"] = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.channel = grpc.insecure_channel(cluster.address, [("grpc.use_local_subchannel_pool", 1)])

    def _link(self, from_node, context):
        headers = [(k, v) for k, v in context.invocation_metadata() if k == "authorization"]
        up, down = queue.Queue(), queue.Queue()

        def take_up():
            try:
                for message in from_node:
                    up.put(message)
            except Exception:  # the node has ended it
                pass
            up.put(None)
        threading.Thread(target=take_up, daemon=True).start()
        call = self.channel.stream_stream(LINK)(iter(up.get, None), metadata=headers)

        def take_down():
            try:
                for message in call:
                    self._pass_on(message, down)
            except grpc.RpcError:
                pass
            with self.between_messages:
                if self.down is down:
                    self.rest = 0
                    self.between_messages.notify_all()
            down.put(None)
        threading.Thread(target=take_down, daemon=True).start()
        context.add_callback(lambda: (up.put(None), call.cancel(), down.put(None)))
        with self.between_messages:
            self.down, self.rest = down, 0
        yield from iter(down.get, None)

    def _pass_on(self, message, down):
        m = MESSAGE.FromString(message)
        if m.HasField("carried") and m.carried.kind == coordinator.KINDS["order"] and not m.carried.rest:
            self.last_order = ORDER.FromString(m.carried.bytes)
        with self.between_messages:
            if self.down is down and m.HasField("carried"):
                self.rest = m.carried.rest
                self.between_messages.notify_all()
            down.put(message)

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_):
        self.server.stop(0).wait(60)
        self.channel.close()

    # -- what the rows do --

    def links(self):
        return self.cluster["b"].log().count("linked to the coordinator")

    def put(self, *messages):
        """One after the other: no frame of the coordinator's comes between them, and they come between no two frames of one message."""
        with self.between_messages:
            assert self.between_messages.wait_for(lambda: not self.rest, 10), f"{self.rest} bytes of a message do not come"
            for message in messages:
                self.down.put(message if isinstance(message, bytes) else MESSAGE(**message).SerializeToString())

    def say(self, *messages):
        b, links, begin = self.cluster["b"], self.links(), len(self.cluster["b"].log())
        self.put(*messages)
        wait_until("another link", lambda: self.links() > links)
        return Answer("ENDED", "", "\n".join(re.findall(r" LinkLost: (.*)", b.log()[begin:])))

    def order(self, **fields):
        """The newest real order to the part, changed; None: without the field."""
        m = ORDER()
        m.CopyFrom(self.last_order)
        for name in fields:
            m.ClearField(name)
        m.MergeFrom(ORDER(**{name: value for name, value in fields.items() if value is not None}))
        return m.SerializeToString()

    def say_of_part(self, kind, packed):
        """What comes of it comes at once."""
        b, begin = self.cluster["b"], len(self.cluster["b"].log())
        self.put({"carried": {"kind": kind, "job_id": self.job, "part": 1, "bytes": packed}})
        end, found = time.monotonic() + 1, None
        while not found and time.monotonic() < end:
            time.sleep(0.02)
            found = re.search(r" LinkMessage .*about part 1 .*", b.log()[begin:])
        return Answer("LOGGED" if found else "IGNORED", "", found[0] if found else "")


@pytest.fixture(scope="module")
def stage():
    cluster = Cluster(2, conf=QUICK, allow=[*ALLOW, " LinkMessage "])
    with Between(cluster) as between, cluster:
        training = over(cluster, spec(ranks=4, parts=2))
        training.window()
        between.job, between.training = training.team.job, training
        wait_until("an order", lambda: between.last_order and between.last_order.job_id == between.job)
        yield between
        training.close()


@pytest.fixture(scope="module")
def group(request, stage):
    pids = {name: node.pid for name, node in stage.cluster.nodes.items()}
    yield stage
    assert pids == {name: node.pid for name, node in stage.cluster.nodes.items()}
    wait_until("the link", lambda: all(n.state == 1 for n in stage.cluster["a"].client.node.ListNodes().nodes))
    stage.training.window()


@pytest.mark.parametrize("group, row", [pytest.param(name, row, id=f"{name}-{row.id}") for name, rows in GROUPS.items() for row in rows], indirect=["group"],
                         scope="module")
def test_bad_input(group, row):
    check(row, row.send(group))
