# SPDX-License-Identifier: Apache-2.0
"""What a coordinator, or whoever stands between it and a node, may say wrong to a node. test_bad_coordinator.py puts it into the link of a node on which a
part of a job trains.

The stage of these rows is test_bad_coordinator.Between. The code is ENDED (the node ends the link, says why in its log, and dials anew), LOGGED (the message
is dropped with a line in its log) or IGNORED (nothing is told, as a message may be late or for a job that is gone).
"""
from bad_inputs import Row
from bad_inputs.nodes import FRAME, KINDS, MAX32, MAX64

WELCOME = dict(link=MAX64, term=MAX64 >> 1, coordinator="a", lease_ms=5000)
UP = [kind for kind in KINDS if kind in ("report", "placed", "event", "tensors", "saved", "view", "ledger", "blob", "launched", "log piece", "norms")]


def ended(what, text, *messages):
    return Row(what, lambda s: s.say(*messages), "ENDED", "", text, "")


def carried(**fields):
    return {"carried": {"kind": KINDS["order"], "job_id": 1, "part": 1, "bytes": b"x", **fields}}


LINK = [
    ended("nothing", "PeerMessage has 0 of hello, welcome, beat and carried", {}),
    ended("two-kinds-in-one", "PeerMessage has 2 of hello", {"welcome": WELCOME, "beat": {}}),
    ended("hello", "something else than Welcome", {"hello": dict(node="a", boot_id=bytes(16), incarnation=1, protocol_min=1, protocol_max=1, data_address="127.0.0.1")}),
    ended("welcome-twice", "it has sent Welcome twice", {"welcome": WELCOME}),
    ended("welcome-without-a-link", "Welcome.link is missing", {"welcome": {**WELCOME, "link": 0}}),
    ended("welcome-without-a-term", "Welcome.term is missing", {"welcome": {**WELCOME, "term": 0}}),
    ended("welcome-of-nobody", r'Welcome.coordinator is "" \(0 bytes\)', {"welcome": {**WELCOME, "coordinator": ""}}),
    ended("welcome-with-an-escape", r'Welcome.coordinator is "\?\[2J"', {"welcome": {**WELCOME, "coordinator": "\x1b[2J"}}),
    ended("welcome-lease-0", "Welcome.lease_ms is 0, and must be", {"welcome": {**WELCOME, "lease_ms": 0}}),
    ended("welcome-lease-highest", f"Welcome.lease_ms is {MAX32}", {"welcome": {**WELCOME, "lease_ms": MAX32}}),
    ended("no-protobuf", "PeerMessage|cannot be read|malformed|MALFORMED|protobuf", b"\xff\xff\xff"),
    ended("unknown-kind", "Carried.kind is 20, and 19 is the last that is known", carried(kind=20)),
    ended("highest-kind", f"Carried.kind is {MAX32}", carried(kind=MAX32)),
    *(ended(f"{kind.replace(' ', '-')}-from-a-coordinator", f"Carried.kind is {KINDS[kind]}, which nodes send", carried(kind=KINDS[kind])) for kind in UP),
    ended("no-job", "Carried.job_id is missing", carried(job_id=0)),
    ended("part-16", "Carried.part is 16, and a job has 16 parts at most", carried(part=16)),
    ended("no-bytes", f"Carried.bytes has 0 bytes, and must have 1 to {FRAME}", carried(bytes=b"")),
    ended("frame-too-long", f"Carried.bytes has {FRAME + 1} bytes", carried(bytes=bytes(FRAME + 1))),
    ended("rest-highest", f"Carried.rest is {MAX64} after 1 bytes", carried(rest=MAX64)),
    ended("another-kind-between", "Carried.kind is 4 in the middle of a message of kind 1", carried(rest=1), carried(kind=KINDS["drop"])),
    ended("rest-that-grows", "Carried.rest is 9 after 1 bytes, where 5 were to come in all", carried(rest=5), carried(rest=9)),
]

DOWN = {"order": "an order", "drop": "a placement's end", "save": "a checkpoint", "board": "a board of addresses", "launch": "an order to a launcher",
        "kept": "a tensor set's answer", "log ask": "a question for a log", "norms ask": "a question for norms"}
WANT_COMMIT = 4  # of cluster.proto
GARBAGE = b"\xff\xff\xff\xff"


def part(what, kind, code, text, make):
    """About the part that is there; `make` gets the stage and returns the packed message."""
    return Row(f"{kind.replace(' ', '-')}-{what}", lambda s: s.say_of_part(KINDS[kind], make(s)), code, "", text, "")


def order(what, code, text, **fields):
    return part(what, "order", code, text, lambda s: s.order(**fields))


PART = [  # no more than 20: so many lines of dropped messages there are in a minute
    *(part("garbage", kind, "LOGGED", f"{name} about part 1 is dropped: ", lambda s: GARBAGE) for kind, name in DOWN.items()),
    part("cut-short", "order", "LOGGED", "an order about part 1 is dropped: ", lambda s: b"\x08"),
    order("of-another-job", "LOGGED", "an order about part 1 is dropped: Order.job_id|Order.commit is of window 1 of job 1", job_id=MAX64),
    order("uuid", "LOGGED", "Order.uuid is another job's", uuid_high=1, uuid_low=2),
    order("no-epoch", "IGNORED", "", epoch=0),  # as one of an earlier epoch, or of an earlier coordinator
    order("no-term", "IGNORED", "", term=0),
    order("want-unknown", "LOGGED", "an order about part 1 is dropped: Order.want", want=99),
    order("commit-of-nothing", "LOGGED", "an order about part 1 is dropped: Order.commit is missing", want=WANT_COMMIT, commit=None),
    order("late-rank", "LOGGED", f"LateRank.rank is {MAX32}, and the job has 4 ranks", late=[dict(rank=MAX32)]),
    order("seventeen-late", "LOGGED", "an order about part 1 is dropped: .*late", late=[dict(rank=i % 4) for i in range(17)]),
    order("fill-part", "LOGGED", "an order about part 1 is dropped: Order.fill_part", fill_part=17),
    order("want-nothing-known", "LOGGED", "an order about part 1 is dropped: Order.want is 0", want=0),
]
