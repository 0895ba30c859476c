# SPDX-License-Identifier: Apache-2.0
"""Every row of bad_inputs/nodes.py against a cluster of two nodes in which a job trains on: what comes back, that each gaccd is the same process
afterwards, that the link of the good node lives, and that the job's next window has the bits that exact.py says.
"""
import contextlib
import os
import pathlib
import queue
import re
import subprocess

import grpc
import pytest
from google.protobuf import descriptor_pb2

from bad_inputs import Answer, nodes
from cluster import Cluster
from harness import GaccError, known_types, wait_until
from test_nodes import ALLOW, QUICK, over
from test_parts import spec

ROOT = pathlib.Path(__file__).resolve().parents[2]


def peer_message():
    """The class of the messages between gaccds, which are not published."""
    made = subprocess.run(["protoc", f"-I{ROOT / 'proto'}", "--descriptor_set_out=/dev/stdout", "gacc/internal/v1/peer.proto"], check=True, capture_output=True)
    for file in descriptor_pb2.FileDescriptorSet.FromString(made.stdout).file:
        known_types().pool.Add(file)
    return known_types().of(known_types().pool.FindMessageTypeByName("gacc.internal.v1.PeerMessage"))


MESSAGE = peer_message()
LINK = "/gacc.internal.v1.PeerService/Link"
PLAIN = {"hello": nodes.HELLOS, "frames": nodes.FRAMES, "callers": nodes.CALLERS, "specifications": nodes.SPECS, "drain": nodes.DRAINS,
         "configuration": nodes.CONFIGS, "its part": nodes.OF_ITS_PART + nodes.FOREIGN + nodes.BLOBS}
ROWS = [row for rows in PLAIN.values() for row in rows] + nodes.CERTIFIED
EXPECTED = [*ALLOW, " NodeRefused", " NodeAhead", " NodeNameTwice", " LinkMessage ", " PartUnknown ", "revoked", "a connection is refused"]


class Intruder:
    """Says what no gaccd says, to the coordinator of a cluster."""

    def __init__(self, cluster, job=None):
        self.cluster, self.job, self.files = cluster, job, cluster["a"].dir
        self.talk = None  # as node b, while that is away

    def open(self, where=None, token=None, cert=False, uid=None):
        """A channel and the headers of its calls. where: the node whose unix socket is dialled; cert: the name of a certificate, None: TLS without one."""
        address = self.cluster[where].endpoint if where else self.cluster.address
        headers = [("authorization", f"Bearer {token}")] if token is not None else []
        headers += [("gacc-uid", uid)] if uid is not None else []
        if cert is False:
            return grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]), headers
        mine = [(self.cluster.certs / f"{cert}.{end}").read_bytes() for end in ("key", "pem")] if cert else [None, None]
        credentials = grpc.ssl_channel_credentials((self.cluster.certs / "ca.pem").read_bytes(), *mine)
        return grpc.secure_channel(address, credentials, [("grpc.use_local_subchannel_pool", 1)]), headers

    def answer(self, e):
        known = self.cluster["a"].client.error_of(LINK, e)
        return Answer(known.code, known.reason, known.text, known.detail.hint)

    def ended(self, channel, headers, path, messages):
        """How a call with these messages ends, of which nobody ends the stream."""
        waiting = queue.Queue()
        for m in messages:
            waiting.put(m if isinstance(m, bytes) else MESSAGE(**m).SerializeToString())
        call = channel.stream_stream(path, request_serializer=bytes, response_deserializer=bytes)(iter(waiting.get, None), timeout=5, metadata=headers)
        try:
            for _ in call:
                pass
            return Answer("OK")
        except grpc.RpcError as e:
            return self.answer(e)
        finally:
            waiting.put(None)
            call.cancel()
            channel.close()

    def link(self, messages):
        token = (self.cluster["b"].dir / "token").read_text()
        return self.ended(*self.open(token=token), LINK, messages)

    def refused(self, method, **who):
        """TLS itself refuses the certificate: the coordinator's log says why."""
        a = self.cluster["a"]
        begin = len(a.log())
        got = self.call_as(method, **who)
        return Answer(got.code, got.reason, got.text + "".join(re.findall(r"a connection is refused: .*", a.log()[begin:])), got.hint)

    def call_as(self, method, **who):
        if not {"token", "where", "cert"} & set(who):
            who["token"] = (self.cluster["b"].dir / "token").read_text()
        channel, headers = self.open(**who)
        if method.endswith("Link"):
            return self.ended(channel, headers, "/" + method, [nodes.hello()])
        try:
            channel.unary_unary("/" + method, request_serializer=bytes, response_deserializer=bytes)(b"", timeout=5, metadata=headers)
            return Answer("OK")
        except grpc.RpcError as e:
            return self.answer(e)
        finally:
            channel.close()

    def said(self, call, *arguments, **fields):
        try:
            call(*arguments, retry=False, timeout=10, **fields)
            return Answer("OK")
        except GaccError as e:
            return Answer(e.code, e.reason, e.text, e.detail.hint)

    def submit(self, s):
        """Also to a gaccd that has just started, and waits for nodes that it does not know yet."""
        client = self.cluster["a"].client

        def answer():
            got = self.said(client.jobs.Submit, client.types.SubmitRequest(spec=client.types.spec(**s), request_id=os.urandom(16)))
            return got if got.code != "UNAVAILABLE" else None
        return wait_until("nodes are known", answer, every=0.2)

    def node(self, method, **fields):
        return self.said(getattr(self.cluster["a"].client.node, method), **fields)

    def say_of_part(self, message):
        """Over the link that `as_node` keeps: dropped with a line in the log, or without a word."""
        a, begin = self.cluster["a"], len(self.cluster["a"].log())
        self.talk.put(MESSAGE(carried=message).SerializeToString())
        wait_until("it is read", lambda: self.is_read())
        found = re.search(r" LinkMessage .*", a.log()[begin:])
        return Answer("LOGGED", "LinkMessage", found[0]) if found else Answer("OK")

    def is_read(self):
        """The link lives, and what was said before this Beat has been taken: a node's memory is in the list with the next one."""
        self.used = getattr(self, "used", 0) + 1
        self.talk.put(MESSAGE(beat={"memory_used": self.used, "memory_limit": 1 << 30}).SerializeToString())
        return wait_until("the beat", lambda: any(n.name == "b" and n.host_bytes_used == self.used for n in self.cluster["a"].client.node.ListNodes().nodes))

    @contextlib.contextmanager
    def as_node(self):
        """Says Hello as node b, which is away meanwhile."""
        wait_until("the link's end", lambda: not any(n.name == "b" and n.state == 1 for n in self.cluster["a"].client.node.ListNodes().nodes))
        channel, headers = self.open(token=(self.cluster["b"].dir / "token").read_text())
        self.talk, heard = queue.Queue(), queue.Queue()
        self.talk.put(MESSAGE(**nodes.hello(node="b", incarnation=2**40)).SerializeToString())
        call = channel.stream_stream(LINK, request_serializer=bytes, response_deserializer=bytes)(iter(self.talk.get, None), metadata=headers)
        try:
            assert MESSAGE.FromString(next(call)).HasField("welcome")
            yield
        finally:
            self.talk.put(None)
            call.cancel()
            channel.close()


def check(row, answer):
    said = f"{answer.code} {answer.reason}: {answer.text!r}, hint {answer.hint!r}"
    assert re.fullmatch(row.code, answer.code), said
    assert re.fullmatch(row.reason, answer.reason), said
    assert re.search(row.value, answer.text), f"{said}: no {row.value!r} in the text"
    assert re.search(row.hint, answer.hint), f"{said}: no {row.hint!r} in the hint"


@pytest.fixture(scope="module")
def c():
    with Cluster(2, conf=QUICK, allow=EXPECTED) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def job(c):
    training = over(c, spec(ranks=4, parts=2))
    training.window()
    yield training
    training.close()


@pytest.fixture(scope="module")
def group(request, c, job):
    """A group of rows between two windows."""
    pids = {name: node.pid for name, node in c.nodes.items()}
    links = c["b"].log().count("linked to the coordinator")
    stage = Intruder(c, job.team.job)
    with contextlib.ExitStack() as stack:
        if request.param == "its part":
            stack.enter_context(c.killed("b"))
            stack.enter_context(stage.as_node())
            pids.pop("b")
        yield stage
    for name, pid in pids.items():
        assert c[name].pid == pid, f"gaccd of {name} has died:\n{c[name].log()[-4000:]}"
    assert request.param == "its part" or c["b"].log().count("linked to the coordinator") == links
    job.window()


@pytest.mark.parametrize("group, row", [pytest.param(group, row, id=row.id) for group, rows in PLAIN.items() for row in rows], indirect=["group"], scope="module")
def test_bad_input(group, row):
    check(row, row.send(group))


def test_nodes_that_cannot_reach_each_other(c, job):
    """Only one of the two has an address on loopback: a job on both is refused."""
    stage, talk = Intruder(c, job.team.job), queue.Queue()
    channel, headers = stage.open(token=(c["b"].dir / "token").read_text())
    talk.put(MESSAGE(**nodes.hello(node="far", data_address="10.9.8.7")).SerializeToString())
    call = channel.stream_stream(LINK, request_serializer=bytes, response_deserializer=bytes)(iter(talk.get, None), metadata=headers)
    try:
        assert MESSAGE.FromString(next(call)).HasField("welcome")
        got = stage.submit({**nodes.SPEC, "ranks": 4, "parts": 2, "nodes": "a,far"})
        assert (got.code, got.reason) == ("INVALID_ARGUMENT", "INVALID_SPEC")
        assert "node a has node.data_address 127.0.0.1, which node far (10.9.8.7) cannot reach: set it to an address of a" in got.text
    finally:
        talk.put(None)
        call.cancel()
        channel.close()


# ---- certificates ----


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=20)


def make_cert(folder, name, uris, ca=None, days=1, use="serverAuth,clientAuth"):
    """A certificate of the cluster's authority, or of `ca`, with these URIs and no more."""
    ca = ca or folder / "ca"
    ext = folder / f"{name}.ext"
    ext.write_text("subjectAltName=" + ",".join([f"DNS:{name}", *(f"URI:{u}" for u in uris)]) + f"\nextendedKeyUsage={use}\n")
    openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}", "-keyout", folder / f"{name}.key",
            "-out", folder / f"{name}.csr")
    openssl("x509", "-req", "-in", folder / f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", days, "-extfile", ext, "-out",
            folder / f"{name}.pem")


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    revoked = tmp_path_factory.mktemp("certs") / "revoked"
    revoked.write_text("")
    cluster = Cluster(2, tls=True, conf=QUICK, node_conf={"a": {"tls.revoked": revoked}}, allow=EXPECTED)
    folder = cluster.certs
    make_cert(folder, "norole", [])
    make_cert(folder, "two", ["spiffe://gacc/node/b", "spiffe://gacc/admin/b"])
    make_cert(folder, "noname", ["spiffe://gacc/node/"])
    make_cert(folder, "elsewhere", ["spiffe://elsewhere/node/b"])
    make_cert(folder, "node-gone", ["spiffe://gacc/node/gone"])
    make_cert(folder, "server", ["spiffe://gacc/node/b"], use="serverAuth")
    make_cert(folder, "expired", ["spiffe://gacc/node/b"], days=-1)
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=other", "-keyout", folder / "other.key", "-out",
            folder / "other.pem", "-days", 1)
    make_cert(folder, "stranger", ["spiffe://gacc/node/b"], ca=folder / "other")
    serial = subprocess.run(["openssl", "x509", "-noout", "-serial", "-in", folder / "node-gone.pem"], check=True, text=True, capture_output=True).stdout
    revoked.write_text(serial)
    with cluster:
        training = over(cluster, spec(ranks=2, parts=2))
        training.window()
        pids = {name: node.pid for name, node in cluster.nodes.items()}
        yield Intruder(cluster, training.team.job)
        training.window()
        assert pids == {name: node.pid for name, node in cluster.nodes.items()}
        assert cluster["b"].log().count("linked to the coordinator") == 1
        training.close()


@pytest.mark.parametrize("row", nodes.CERTIFIED, ids=lambda row: row.id)
def test_bad_certificate(certified, row):
    check(row, row.send(certified))


def test_a_refused_certificate_is_told_once(certified):
    """Who is refused dials again and again."""
    row = next(row for row in nodes.CERTIFIED if row.id == "caller-expired")
    for _ in range(4):
        row.send(certified)
    assert certified.cluster["a"].log().count('refused: certificate "expired"') == 1


def test_strangers_leave_the_lines_of_others(certified):
    """Of their certificates, which they can make in any number, only some are told; one of the cluster's authority is still told afterwards."""
    folder, a = certified.cluster.certs, certified.cluster["a"]
    for i in range(20):
        make_cert(folder, f"thrown{i}", [f"spiffe://gacc/node/{i}"], ca=folder / "other")
        certified.call_as("gacc.v1.NodeService/GetNode", cert=f"thrown{i}")
    assert a.log().count('refused: certificate "thrown') < 20 and "other certificates of unknown authorities nothing is told for some minutes" in a.log()
    make_cert(folder, "lapsed", ["spiffe://gacc/node/b"], days=-1)
    certified.call_as("gacc.v1.NodeService/GetNode", cert="lapsed")
    assert 'refused: certificate "lapsed" (role node/b, serial ' in a.log()


def test_the_table():
    assert len(ROWS) >= 60
    assert len({row.id for row in ROWS}) == len(ROWS)
