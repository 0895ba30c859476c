# SPDX-License-Identifier: Apache-2.0
"""What nodes, or whoever pretends to be one, may say wrong: over the link of two gaccds (proto/gacc/internal/v1/peer.proto), with certificates, in
`nodes` of a specification, and in a gaccd's configuration. test_bad_nodes.py sends all of it to a cluster in which a job trains on.

The stage of these rows is test_bad_nodes.Intruder. LOGGED is the code of a message that is dropped with a line in the coordinator's log.
"""
import os
import socket
import struct
import subprocess

from bad_inputs import Answer, Row
from bad_inputs.jobs import SPEC
from harness import build_dir

GOOD_HELLO = dict(node="x", boot_id=bytes(16), incarnation=1, protocol_min=1, protocol_max=1, version="0", coll="gloo/2", kernels="none",
                  data_address="127.0.0.1", cpus=1)
MAX32, MAX64 = 2**32 - 1, 2**64 - 1
FRAME = 1 << 20
SKEW = ("FAILED_PRECONDITION", "VERSION_SKEW")


def hello(**fields):
    return {"hello": {**GOOD_HELLO, **fields}}


def carried(**fields):
    """Of a report unless `kind` says otherwise."""
    return {"carried": {"kind": KINDS["report"], "job_id": 1, "part": 1, "bytes": b"x", **fields}}


KINDS = {name: i for i, name in enumerate(("report", "order", "placement", "placed", "drop", "event", "tensors", "kept", "save", "saved", "view", "ledger",
                                           "blob", "board", "launch", "launched", "log ask", "log piece", "norms ask", "norms"))}  # enum link_kind
DOWN = ("order", "placement", "drop", "kept", "save", "board", "norms ask")  # what coordinators send


def link(what, value, /, *messages, status=SKEW, hint=""):
    """Messages over a link of their own, which must end with this error; none of the hints says more than the text."""
    return Row(f"link-{what}", lambda s: s.link(messages), *status, value, hint)


def said_hello(what, value, /, *messages, **how):
    return link(what, value, hello(), *messages, **how)


HELLOS = [
    link("nothing", "PeerMessage has 0 of hello, welcome, beat and carried", {}),
    link("two-kinds-in-one", "PeerMessage has 2 of hello", {**hello(), "beat": {}}),
    link("beat-first", "something else than Hello has come first", {"beat": {}}),
    link("welcome-first", "something else than Hello has come first", {"welcome": dict(link=1, term=1, coordinator="a", lease_ms=5000)}),
    link("carried-first", "something else than Hello has come first", carried()),
    said_hello("hello-twice", "Hello has come twice", hello()),
    link("name-empty", r'Hello.node is "" \(0 bytes\), and must be 1 to 64', hello(node="")),
    link("name-long", r"\(65 bytes\), and must be 1 to 64 letters", hello(node="n" * 65)),
    link("name-with-a-space", 'Hello.node is "a b"', hello(node="a b")),
    link("name-with-a-slash", r'Hello.node is "\.\./a"', hello(node="../a")),
    link("name-with-an-escape", r'Hello.node is "\?\[2J"', hello(node="\x1b[2J")),
    link("name-no-ascii", 'Hello.node is "n\\?\\?e"', hello(node="n\u00f6e")),
    link("boot-id-short", "Hello.boot_id has 15 bytes, and must have 16", hello(boot_id=bytes(15))),
    link("boot-id-long", "Hello.boot_id has 17 bytes, and must have 16", hello(boot_id=bytes(17))),
    link("no-boot-id", "Hello.boot_id has 0 bytes", hello(boot_id=b"")),
    link("no-incarnation", "Hello.incarnation is missing", hello(incarnation=0)),
    link("no-protocol", "Hello.protocol_min is missing", hello(protocol_min=0)),
    link("protocols-crossed", "Hello.protocol_min is 3, and protocol_max 2", hello(protocol_min=3, protocol_max=2)),
    link("protocol-too-new", "node x speaks protocol 3 to 9, and coordinator a 1 to 2: update the older", hello(protocol_min=3, protocol_max=9)),
    link("data-address-empty", 'Hello.data_address is "", and must be an IP address', hello(data_address="")),
    link("data-address-a-name", 'Hello.data_address is "localhost"', hello(data_address="localhost")),
    link("data-address-with-a-port", 'Hello.data_address is "127.0.0.1:80"', hello(data_address="127.0.0.1:80")),
    link("held-too-many", "Hello.held has 4097 parts, and may have 4096", hello(held=[dict(job_id=10**6, epoch=1, uuid_high=MAX64, uuid_low=MAX64)] * 4097)),
    link("held-no-job", "PartHeld.job_id is missing", hello(held=[dict(epoch=1)])),
    link("held-no-epoch", "PartHeld.epoch is missing", hello(held=[dict(job_id=1)])),
    link("held-part-16", "PartHeld.part is 16, and a job has 16 parts at most", hello(held=[dict(job_id=1, epoch=1, part=16)])),
    link("held-part-highest", f"PartHeld.part is {MAX32}", hello(held=[dict(job_id=1, epoch=1, part=MAX32)])),
    link("name-of-the-coordinator", "a is the coordinator's own name; give the node at 127.0.0.1 another node.name", hello(node="a"),
         status=("ALREADY_EXISTS", "ALREADY_EXISTS")),
    link("name-of-a-node-that-is-up", "a node with the name b is up: 127.0.0.1, incarnation", hello(node="b"), status=("ALREADY_EXISTS", "ALREADY_EXISTS")),
    link("term-ahead", f"node x has seen term {MAX64} of a coordinator, and this one, a, has 1: its journal is not the newest", hello(term_seen=MAX64),
         status=("ABORTED", "STALE_TERM")),
    link("no-protobuf", "PeerMessage", b"\xff\xff\xff", status=(".*", "MALFORMED")),
    link("cut-short", "PeerMessage", b"\x0a\x7f\x0a", status=(".*", "MALFORMED")),
    link("name-no-utf8", "Hello.node|utf|UTF", b"\x0a\x03\x0a\x01\xff", status=(".*", "MALFORMED|VERSION_SKEW")),
]
FRAMES = [
    said_hello("welcome-from-a-node", "Welcome has come from a node", {"welcome": dict(link=1, term=1, coordinator="a", lease_ms=5000)}),
    said_hello("no-lease", "Welcome.lease_ms is 0, and must be", {"welcome": dict(link=1, term=1, coordinator="a")}),
    said_hello("unknown-kind", "Carried.kind is 20, and 19 is the last that is known", carried(kind=20)),
    said_hello("highest-kind", f"Carried.kind is {MAX32}", carried(kind=MAX32)),
    *(said_hello(f"{kind}-from-a-node", f"Carried.kind is {KINDS[kind]}, which coordinators send", carried(kind=KINDS[kind])) for kind in DOWN),
    said_hello("no-job", "Carried.job_id is missing", carried(job_id=0)),
    said_hello("part-16", "Carried.part is 16, and a job has 16 parts at most", carried(part=16)),
    said_hello("no-bytes", f"Carried.bytes has 0 bytes, and must have 1 to {FRAME}", carried(bytes=b"")),
    said_hello("frame-too-long", f"Carried.bytes has {FRAME + 1} bytes", carried(bytes=bytes(FRAME + 1))),
    said_hello("message-too-long", f"Carried.rest is {16 << 20} after 1 bytes, and a message of kind 0 has {16 << 20} at most", carried(rest=16 << 20)),
    said_hello("tensors-too-long", f"Carried.rest is {128 << 20} after 1 bytes", carried(kind=KINDS["tensors"], rest=128 << 20)),
    said_hello("rest-highest", f"Carried.rest is {MAX64} after 1 bytes", carried(rest=MAX64)),
    said_hello("another-kind-between", "Carried.kind is 10 in the middle of a message of kind 0", carried(rest=1), carried(kind=KINDS["view"])),
    said_hello("another-job-between", "Carried.job_id is 2 in the middle of a message about job 1", carried(rest=1), carried(job_id=2)),
    said_hello("another-part-between", "Carried.part is 0 in the middle of a message about part 1", carried(rest=1), carried(part=0)),
    said_hello("frame-longer-than-the-rest", "Carried.rest is 0 after 2 bytes, where 1 were to come in all", carried(rest=1), carried(bytes=b"yy")),
    said_hello("rest-that-grows", "Carried.rest is 9 after 1 bytes, where 5 were to come in all", carried(rest=5), carried(rest=9)),
]


def of_its_part(what, value, /, kind, **fields):
    """From the node of part 1 of the job: it is read, and dropped with a line in the log; the link lives."""
    return Row(f"part-{kind}-{what}", lambda s: s.say_of_part({"kind": KINDS[kind], "job_id": s.job, "part": 1, **fields}), "LOGGED", "LinkMessage", value, "")


GARBAGE = b"\xff\xff\xff\xff"
OF_ITS_PART = [of_its_part("garbage", rf"{what} about part 1 is dropped: ", kind, bytes=GARBAGE) for kind, what in (
    ("report", "a report"), ("placed", "a placement's answer"), ("event", "an event"), ("tensors", "a tensor set"), ("saved", "a checkpoint's answer"),
    ("view", "a view"), ("ledger", "a ledger"), ("blob", "an address"), ("norms", "norms"))]


def board_address(ip, n_parts=2, part=1, life=7):
    """What the engine of a part over Gloo gives the others (coll/gloo_blob.h), with another machine's address."""
    listens = struct.pack("<HHxxxx", socket.AF_INET6, 4000) if ":" in ip else struct.pack("<H", socket.AF_INET) + struct.pack(">H", 4000)
    listens += socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)
    gloo = struct.pack("<Q4Q4Q2Q", 0x3267636f6f6c67, 1, 1, 1, 1, part, n_parts, 0, life, 1, 2)
    return gloo + b"".join(bytes(128) if s == part else listens.ljust(128, b"\0") for s in range(n_parts))


def part_blob(job, ip):
    """PartBlob of gacc/internal/v1/cluster.proto."""
    address, life = board_address(ip), 7

    def varint(n):
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)
    numbers = b"".join(varint(field << 3) + varint(value) for field, value in ((1, job), (2, 1), (3, 1), (4, 1), (5, 1)))
    return numbers + varint(6 << 3 | 1) + struct.pack("<Q", life) + varint(7 << 3 | 2) + varint(len(address)) + address


def blob(what, ip, *row):
    return Row(f"part-blob-{what}", lambda s: s.say_of_part({"kind": KINDS["blob"], "job_id": s.job, "part": 1, "bytes": part_blob(s.job, ip)}), *row, "")


ELSEWHERE = ("LOGGED", "LinkMessage", "an address about part 1 is dropped: it is not node.data_address of its node, 127.0.0.1")
BLOBS = [blob("of-another-machine", "10.9.8.7", *ELSEWHERE), blob("of-another-family", "::1", *ELSEWHERE), blob("of-nowhere", "0.0.0.0", *ELSEWHERE),
         blob("of-its-own-machine", "127.0.0.1", "OK", "", "")]  # of an engine that is not there: forgotten

FOREIGN = [of_its_part("of-another-node", "about part 0 is dropped: the part is on another node", kind, bytes=GARBAGE, part=0)
           for kind in ("report", "placed", "view", "blob")]
FOREIGN.append(of_its_part("of-no-part", "a report about part 15 is dropped: the job has no such part", "report", bytes=GARBAGE, part=15))
FOREIGN += [Row(f"part-{kind}-of-no-job", lambda s, kind=kind: s.say_of_part({"kind": KINDS[kind], "job_id": MAX64, "part": 1, "bytes": GARBAGE}), "OK", "", "", "")
            for kind in ("report", "blob")]  # jobs that are over are forgotten: nobody needs to read of it


# ---- who calls ----


def caller(what, code, reason, value, /, method="gacc.internal.v1.PeerService/Link", hint="", **who):
    return Row(f"caller-{what}", lambda s: (s.refused if code == "UNAVAILABLE" else s.call_as)(method, **who), code, reason, value, hint)


LIST = "gacc.v1.JobService/List"
CALLERS = [
    caller("without-a-token", "UNAUTHENTICATED", "UNAUTHENTICATED", "", token=None),
    caller("with-another-token", "UNAUTHENTICATED", "UNAUTHENTICATED", "", token="0" * 64),
    caller("with-an-empty-token", "UNAUTHENTICATED", "UNAUTHENTICATED", "", token=""),
    caller("over-the-socket", "PERMISSION_DENIED", "PERMISSION_DENIED", "is for the gaccd of another node, over TCP", hint="users need not call this", where="a"),
    caller("over-a-nodes-socket", "PERMISSION_DENIED", "PERMISSION_DENIED", "is for the gaccd of another node, over TCP", hint="cluster.coordinator",
           where="b"),
    *(caller(f"for-{what}", "UNAUTHENTICATED", "UNAUTHENTICATED", "", method=LIST, uid=uid)
      for what, uid in (("no-user", ""), ("a-name", "root"), ("a-negative-user", "-1"), ("nobody-at-all", str(MAX32)), ("a-huge-user", "9" * 40))),
]
CERTIFIED = [
    caller("admin-as-node", "PERMISSION_DENIED", "PERMISSION_DENIED", "has the role admin/root; needed: node", cert="admin-root", hint="spiffe://CLUSTER/ROLE/NAME"),
    caller("coordinator-as-node", "PERMISSION_DENIED", "PERMISSION_DENIED", "has the role coordinator/a; needed: node", cert="coordinator-a", hint="spiffe"),
    caller("node-as-admin", "PERMISSION_DENIED", "PERMISSION_DENIED", "has the role node/b; needed: admin", method=LIST, cert="node-b", hint="spiffe"),
    caller("node-for-root", "PERMISSION_DENIED", "PERMISSION_DENIED", "uid 0 is below cluster.relay_min_uid", method=LIST, cert="node-b", uid="0",
           hint="on the coordinator's machine"),
    caller("node-for-a-name", "UNAUTHENTICATED", "UNAUTHENTICATED", "", method=LIST, cert="node-b", uid="ana"),
    caller("another-nodes-hello", "PERMISSION_DENIED", "PERMISSION_DENIED", "the certificate is of node b, and Hello.node is x", cert="node-b"),
    caller("no-role", "PERMISSION_DENIED", "PERMISSION_DENIED", "has no role; needed: node", cert="norole", hint="spiffe"),
    caller("two-roles", "UNAUTHENTICATED", "UNAUTHENTICATED", "its URIs name several roles", cert="two"),
    caller("role-without-a-name", "UNAUTHENTICATED", "UNAUTHENTICATED", "or one without a name", cert="noname"),
    caller("revoked", "UNAUTHENTICATED", "UNAUTHENTICATED", "is revoked", cert="node-gone", hint="have the authority make another one"),
    caller("another-authority", "UNAVAILABLE", "", r'a connection is refused: certificate "stranger" \(role node/b, serial [0-9a-f]+\) is of another authority', cert="stranger"),
    caller("other-cluster", "UNAUTHENTICATED", "UNAUTHENTICATED", "is of another cluster, \"elsewhere\"", cert="elsewhere", hint="names the cluster of the certificate"),
    caller("expired", "UNAVAILABLE", "", r'certificate "expired" \(role node/b, serial [0-9a-f]+\) has expired, on 20.* UTC: have the authority make another', cert="expired"),
    caller("for-servers-only", "UNAVAILABLE", "", r'certificate "server" .* is not for clients, by its extended key usage', cert="server"),
    caller("no-certificate", "UNAVAILABLE", "", "", cert=None),
]


# ---- placements ----


def nodes(what, value, /, **fields):
    return Row(f"nodes-{what}", lambda s: s.submit({**SPEC, "ranks": 4, "parts": 2, **fields}), "INVALID_ARGUMENT", "INVALID_SPEC", value, "")


NAMES = r'nodes has "%s", must be names of at most 64 letters'
SPECS = [
    nodes("a-comma", NAMES % "", nodes=","),
    nodes("an-empty-name", NAMES % "", nodes="a,,b"),
    nodes("a-comma-at-the-end", NAMES % "b", nodes="a,b,"),
    nodes("a-space", NAMES % " b", nodes="a, b"),
    nodes("a-slash", NAMES % r"\.\./b", nodes="a,../b"),
    nodes("a-long-name", NAMES % ("n" * 65), nodes="a," + "n" * 65),
    nodes("no-number", NAMES % "b:", nodes="a,b:"),
    nodes("ranks-0", NAMES % "b:0", nodes="a,b:0"),
    nodes("ranks-negative", NAMES % "b:-2", nodes="a,b:-2"),
    nodes("ranks-in-hexadecimal", NAMES % "b:0x2", nodes="a,b:0x2"),
    nodes("ranks-huge", NAMES % "b:9999999", nodes="a,b:9999999"),
    nodes("only-ranks", NAMES % ":4", nodes=":4"),
    nodes("ranks-of-other-blocks", r"nodes gives b 3 ranks: with 2 parts in equal blocks it has 2 \(2 to 3\)", nodes="a:2,b:3"),
    nodes("twice", "nodes names b twice", nodes="b,b"),
    nodes("more-than-parts", "nodes names 2 nodes for 1 parts: each node has at least one part", nodes="a,b", parts=1),
    nodes("seventeen", "nodes names more than 16 nodes", nodes=",".join(f"n{i}" for i in range(17)), ranks=16, parts=16),
    nodes("unknown", "the cluster has no node z; it has a, b", nodes="a,z"),
    nodes("a-prefix", "the cluster has no node bb; it has a, b", nodes="a,bb"),
]


def drain(what, value, /, code="INVALID_ARGUMENT", **fields):
    return Row(f"drain-{what}", lambda s: s.node("DrainNode", **fields), code, code, value, "")


DRAINS = [
    drain("nobody", 'the cluster has no node ""', name="", drained=True),
    drain("unknown", 'the cluster has no node "zz"', name="zz", drained=True),
    drain("a-long-name", 'the cluster has no node "n{64}"', name="n" * 4000, drained=True),
    drain("the-coordinator", "node a coordinates: it cannot be drained", name="a", drained=True),
    drain("undrain-unknown", 'the cluster has no node "zz"', name="zz", drained=False),
]


# ---- configuration ----


def check_config(*settings):
    def send(stage):
        command = [build_dir() / "bin/gaccd", "--config", stage.files / "gaccd.yaml", "--check-config"]
        done = subprocess.run([*command, *(w for s in settings for w in ("--set", s.format(dir=stage.files)))], text=True, capture_output=True, timeout=20,
                              env={k: v for k, v in os.environ.items() if not k.startswith("GACC_")})
        return Answer(str(done.returncode), "", done.stdout + done.stderr)
    return send


def config(what, value, /, *settings):
    return Row(f"config-{what}", check_config(*settings), "2", "", value, "")


TOKEN = "cluster.token_file={dir}/token"
CONFIGS = [
    config("coordinator-without-a-port", 'cluster.coordinator: "10.0.0.1" must be HOST:PORT', "cluster.coordinator=10.0.0.1", TOKEN),
    config("coordinator-without-a-secret", "cluster.coordinator: a link to 127.0.0.1:9 needs tls.cert, tls.key and tls.ca, or cluster.token_file",
           "cluster.coordinator=127.0.0.1:9"),
    config("token-over-a-network", r"cluster.coordinator: a link to 10.0.0.1:17420 needs tls.cert, .* a token alone is allowed on 127.0.0.1", "cluster.coordinator=10.0.0.1:17420", TOKEN),
    config("listening-with-a-token-for-all", r"listen.tcp: TCP on 0.0.0.0:17420 needs tls.cert, .* a token alone is allowed on 127.0.0.1", "listen.tcp=0.0.0.0:17420", "listen.token_file={dir}/token"),
    config("listening-without-a-secret", "listen.tcp: TCP on 127.0.0.1:9 needs tls.cert", "listen.tcp=127.0.0.1:9"),
    config("a-name-with-a-space", 'node.name: "a b" must be 1 to 64 letters', "node.name=a b", "cluster.coordinator=127.0.0.1:9", TOKEN),
    config("a-long-name", "node.name: .* must be 1 to 64 letters|node.name", "node.name=" + "n" * 65, "cluster.coordinator=127.0.0.1:9", TOKEN),
    config("data-address-a-name", 'node.data_address: "localhost" must be an IP address', "node.data_address=localhost"),
    config("data-address-with-a-port", 'node.data_address: "10.0.0.1:80" must be an IP address', "node.data_address=10.0.0.1:80"),
    config("lease-0", "cluster.lease", "cluster.lease=0s"),
    config("lease-negative", "cluster.lease", "cluster.lease=-1s"),
    config("lease-of-a-day", "cluster.lease", "cluster.lease=24h"),
    config("a-misspelt-key", 'unknown key "coordinater" in cluster; did you mean "coordinator"', "cluster.coordinater=127.0.0.1:9"),
]
