# SPDX-License-Identifier: Apache-2.0
"""The attach socket: packets that are no request, sessions of others, descriptors that nobody asked for, floods; and a gaccd that has no
descriptors left."""
import contextlib
import os
import resource
import socket
import struct

from bad_inputs import Answer, Row
from bad_inputs.caller import ask, connect, rights
from bad_inputs.http2 import PREFACE, Connection, frame
from bad_inputs.jobs import W, submit

PER_USER = 64  # listen.connections_per_user of the gaccd that is attacked


def packet(data, ancillary=None):
    def send(s):
        with contextlib.ExitStack() as opened:
            more = ancillary(opened) if ancillary else ()
            return s.packet(data(s) if callable(data) else data, more)
    return send


def session(name, version=1):
    return packet(lambda s: s.map_request(version, name))


def descriptors(n):
    return lambda opened: rights(*[opened.enter_context(open("/dev/zero", "rb")).fileno() for _ in range(n)])


def credentials(opened):
    return [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", os.getpid(), os.getuid(), os.getgid()))]


def row(what, send, code, reason, value, hint):
    return Row(f"map-{what}", send, code, reason, value, hint)


SESSIONS = [
    row("version-0", session("own", 0), "REFUSED", "VERSION_SKEW", "version 0 .* speaks 1", "update"),
    row("version-2", session("own", 2), "REFUSED", "VERSION_SKEW", "version 2 .* speaks 1", "update"),
    row("version-highest", session("own", 2**32 - 1), "REFUSED", "VERSION_SKEW", f"version {2**32 - 1}", "update"),
    row("no-session", packet(b"\x08\x01"), "REFUSED", "SESSION_UNKNOWN", "session is missing", "Attach"),
    row("no-token", session("no token"), "REFUSED", "SESSION_UNKNOWN", "0 bytes, must have 16", "Attach"),
    row("short-token", session("short token"), "REFUSED", "SESSION_UNKNOWN", "15 bytes, must have 16", "Attach"),
    row("long-token", session("long token"), "REFUSED", "SESSION_UNKNOWN", "17 bytes, must have 16", "Attach"),
    row("zero-token", session("zero token"), "REFUSED", "SESSION_UNKNOWN", r"rank 0 of job \d+", "attach again"),
    row("guessed-token", session("guessed"), "REFUSED", "SESSION_UNKNOWN", r"rank 0 of job \d+", "attach again"),
    row("own-token-victims-id", session("own token, victim's id"), "REFUSED", "SESSION_UNKNOWN", r"rank 1 of job \d+", "attach again"),
    row("victims-token-own-id", session("victim's token, own id"), "REFUSED", "SESSION_UNKNOWN", r"rank 0 of job \d+", "attach again"),
    row("no-such-rank", session("no such rank"), "REFUSED", "SESSION_UNKNOWN", r"rank 2 of job \d+", "attach again"),
    row("no-such-job", session("no such job"), "REFUSED", "SESSION_UNKNOWN", r"session \d+ is of no job", "attach again"),
    row("highest-id", session("highest id"), "REFUSED", "SESSION_UNKNOWN", f"session {2**64 - 1}", "attach again"),
    row("fenced", session("fenced"), "REFUSED", "SESSION_FENCED", r"rank 1 of job \d+ \(pid", "end this process"),
    row("ended", session("ended"), "REFUSED", "JOB_ENDED|NOT_READY", r"job", "submit a new job|RegisterTensors"),
    row("without-shared-memory", session("unfilled"), "REFUSED", "INVALID_ARGUMENT", r"rank 0 of job \d+ has no shared memory", "wants_shared_memory"),
    row("before-there-is-memory", session("fresh"), "REFUSED", "NOT_READY", "no memory yet", "RegisterTensors"),
]
PACKETS = [
    row("empty-packet", packet(b""), "CLOSED", "", "", ""),
    row("garbage", packet(b"\xff" * 100), "REFUSED", "MALFORMED", "MapRequest at byte 0", "no field"),
    row("request-cut", packet(lambda s: s.map_request()[:-1]), "REFUSED", "MALFORMED", r"bytes are announced, \d+ are left", "session"),
    row("text", packet(b"GET / HTTP/1.1\r\n\r\n"), "REFUSED", "MALFORMED", "MapRequest", "wire type|announced"),
    row("packet-of-4096", packet(b"\x12" * 4096), "REFUSED", "MALFORMED", "Session.token|MapRequest.session", "announced|wire type"),
    row("packet-of-4097", packet(bytes(4097)), "REFUSED", "MALFORMED", "4097 bytes, at most 4096", "one MapRequest"),
    row("packet-of-150000", packet(bytes(150000)), "REFUSED", "MALFORMED", "150000 bytes, at most 4096", "one MapRequest"),
    row("with-a-descriptor", packet(lambda s: s.map_request(), descriptors(1)), "REFUSED", "MALFORMED", "ancillary data", "alone"),
    row("with-253-descriptors", packet(lambda s: s.map_request(), descriptors(253)), "REFUSED", "MALFORMED", "ancillary data", "alone"),
    row("garbage-with-descriptors", packet(b"\xff", descriptors(9)), "REFUSED", "MALFORMED", "1 bytes with ancillary data", "alone"),
    row("guessed-with-credentials", packet(lambda s: s.map_request(session="guessed"), credentials), "REFUSED", "SESSION_UNKNOWN", "rank 0",
        "attach again"),
]


def after_a_refusal(s):
    """One connection, one bad packet after the other: each is answered."""
    with connect(s.attach_socket) as c:
        answers = [ask(s.types, c, s.map_request(session=name)) for name in ("guessed", "no token", "fenced")]
        assert [a.reason for a in answers] == ["SESSION_UNKNOWN", "SESSION_UNKNOWN", "SESSION_FENCED"]
        return ask(s.types, c, bytes(5000))


def never_reading(s):
    """Requests without end, whose answers pile up: gaccd hangs up, and waits for nobody."""
    with connect(s.attach_socket) as c:
        try:
            for _ in range(100000):
                c.send(s.map_request(session="guessed"))
        except ConnectionError:
            return Answer("CLOSED", text=s.last_line("attach socket: uid"))


def over_the_limit(s):
    """More connections than a user may have: the last ones are closed, with one line in the log; those there are go on."""
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(connect(s.attach_socket)) for _ in range(PER_USER + 30)]
        answers = [ask(s.types, c, s.map_request(session="guessed")).code for c in connections]
        assert answers[0] == "REFUSED" and answers.count("CLOSED") >= 30
        assert s.daemon.log().count(f".attach: uid {os.getuid()}") == 1
        text = s.last_line(rf"\.attach: uid {os.getuid()}")
    return Answer(answers[-1], text=text, hint=text)


def over_the_limit_of_grpc(s):
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(Connection(str(s.daemon.socket), PREFACE + frame(4))) for _ in range(PER_USER + 30)]
        assert s.call("NodeService/GetNode", [{}]).code == "OK"  # on a connection that was there before
        outcome = connections[-1].outcome()
        text = s.last_line(r"g\.sock: uid")
    return Answer(outcome.code, text=text, hint=text)


FLOODS = [
    row("after-refusals", after_a_refusal, "REFUSED", "MALFORMED", "5000 bytes", "one MapRequest"),
    row("never-reading", never_reading, "CLOSED", "", r"\(pid \d+\): .*: closed", ""),
    row("over-the-limit", over_the_limit, "CLOSED", "", f"has {PER_USER} connections, the most", "listen.connections_per_user"),
    row("over-the-limit-of-grpc", over_the_limit_of_grpc, "CLOSED", "", f"has {PER_USER} connections, the most", "listen.connections_per_user"),
]


@contextlib.contextmanager
def few_descriptors(s):
    """gaccd can open only so many more."""
    s.wait_descriptors(s.quiet_descriptors)
    before = resource.prlimit(s.daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(s.daemon.pid, resource.RLIMIT_NOFILE, (s.quiet_descriptors + 6, before[1]))
    try:
        yield
    finally:
        resource.prlimit(s.daemon.pid, resource.RLIMIT_NOFILE, before)


def swamped(s):
    """Both sockets get more connections than gaccd has descriptors. Calls on connections that are there go on; new ones are served again
    when there is room."""
    with few_descriptors(s), contextlib.ExitStack() as opened:
        maps = [opened.enter_context(connect(s.attach_socket)) for _ in range(20)]
        calls = [opened.enter_context(Connection(str(s.daemon.socket))) for _ in range(20)]
        answers = [ask(s.types, c, s.map_request(session="guessed")).code for c in maps]
        outcomes = [c.outcome().code for c in calls]
        assert s.call("NodeService/GetNode", [{}]).code == "OK"
        assert s.daemon.log().count("no descriptors left") <= 2 * 2, "a line for each refused connection"
        text = s.last_line("no descriptors left")
    assert answers.count("CLOSED") >= 10 and outcomes.count("CLOSED") >= 10
    return Answer(outcomes[-1], text=text)


def job_without_descriptors(s):
    with few_descriptors(s):
        return submit(name="no descriptors", tensors=[W])(s)


DESCRIPTORS = [
    Row("descriptors-swamped", swamped, "CLOSED", "", "connections are refused", ""),
    Row("descriptors-for-no-job", job_without_descriptors, "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED",
        "needs 33 descriptors and can never run here", "raise the limit"),
]
ROWS = SESSIONS + PACKETS + FLOODS + DESCRIPTORS
