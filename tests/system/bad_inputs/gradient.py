# SPDX-License-Identifier: Apache-2.0
"""GradientService: what a trainer may say wrong. The attacker has pushed micro-batch 0 of three into the open window."""
import os

from bad_inputs import Row, rpc
from bad_inputs.stage import KEY, NOBODY

NAN, INF, MAX32, MAX64 = float("nan"), float("inf"), 2**32 - 1, 2**64 - 1
INVALID, PRECONDITION, ABORTED, NOT_FOUND = "INVALID_ARGUMENT", "FAILED_PRECONDITION", "ABORTED", "NOT_FOUND"


# ---- Attach ----


def attach(**fields):
    return lambda s: s.call("GradientService/Attach", [{
        **dict(job=str(s.job), rank=0, world_size=2, nonce=os.urandom(16), protocol_min=1, protocol_max=1),
        **{k: v(s) if callable(v) else v for k, v in fields.items()}}])


def creating(s):
    return s.types.spec(name="made by attach", ranks=2, micro_size=0, optimizer={"type": "sgd"})


ATTACH = [
    Row("attach-job-empty", attach(job=""), NOT_FOUND, "JOB_NOT_FOUND", 'job ""', "gaccctl jobs"),
    Row("attach-job-unknown", attach(job="nope"), NOT_FOUND, "JOB_NOT_FOUND", '"nope"', "GACC_JOB_ID"),
    Row("attach-job-beyond-64-bits", attach(job="9" * 30), NOT_FOUND, "JOB_NOT_FOUND", "9{30}", "gaccctl jobs"),
    Row("attach-job-with-sign", attach(job=lambda s: f"+{s.job}"), NOT_FOUND, "JOB_NOT_FOUND", r'"\+\d+"', "gaccctl jobs"),
    Row("attach-job-wrapped-around", attach(job=lambda s: f"-{2**64 - s.job}"), NOT_FOUND, "JOB_NOT_FOUND", '"-184', "gaccctl jobs"),
    Row("attach-job-after-space", attach(job=lambda s: f" {s.job}"), NOT_FOUND, "JOB_NOT_FOUND", r'" \d+"', "gaccctl jobs"),
    Row("attach-job-long", attach(job="x" * 100000), NOT_FOUND, "JOB_NOT_FOUND", '"xxx', "gaccctl jobs"),
    Row("attach-job-cut-in-a-character", attach(job="x" * 99 + "ä"), NOT_FOUND, "JOB_NOT_FOUND", r'xx\?"', "gaccctl jobs"),
    Row("attach-rank-2-of-2", attach(rank=2), INVALID, "RANK_OUT_OF_RANGE", "rank 2 of a job with 2", "check RANK"),
    Row("attach-rank-highest", attach(rank=MAX32), INVALID, "RANK_OUT_OF_RANGE", str(MAX32), "check RANK"),
    Row("attach-world-0", attach(world_size=0), INVALID, "INVALID_ARGUMENT", "world_size is 0, the job has 2", "as many ranks"),
    Row("attach-world-3", attach(world_size=3), INVALID, "INVALID_ARGUMENT", "world_size is 3, the job has 2", "as many ranks"),
    Row("attach-protocol-newer", attach(protocol_min=2, protocol_max=9), PRECONDITION, "VERSION_SKEW", r"2\.\.9.* 1", "update"),
    Row("attach-protocol-none", attach(protocol_min=0, protocol_max=0), PRECONDITION, "VERSION_SKEW", r"0\.\.0.* 1", "update"),
    Row("attach-protocol-reversed", attach(protocol_min=3, protocol_max=0), PRECONDITION, "VERSION_SKEW", r"3\.\.0.* 1", "update"),
    Row("attach-nonce-empty", attach(nonce=b""), INVALID, "INVALID_ARGUMENT", "nonce has 0 bytes", "correct"),
    Row("attach-nonce-short", attach(nonce=bytes(15)), INVALID, "INVALID_ARGUMENT", "nonce has 15 bytes", "correct"),
    Row("attach-nonce-long", attach(nonce=bytes(17)), INVALID, "INVALID_ARGUMENT", "nonce has 17 bytes", "correct"),
    Row("attach-nonce-huge", attach(nonce=bytes(1 << 20)), INVALID, "INVALID_ARGUMENT", "nonce has 1048576 bytes", "correct"),
    Row("attach-resume-fenced", attach(job="fresh", rank=1, resume_generation=lambda s: s.fenced_generation), ABORTED, "SESSION_FENCED",
        "rank 1 of job", "end this process"),
    Row("attach-to-an-ended-job", attach(job=lambda s: str(s.jobs["ended"])), PRECONDITION, "JOB_ENDED", r"job \d+ has ended: cancelled",
        "submit a new job"),
    Row("attach-creating-a-bad-job", attach(job="made by attach", create_if_missing=creating), INVALID, "INVALID_SPEC",
        "micro_size is 0", "create_if_missing"),
]


# ---- sessions: every method that takes one, with every kind that is not ours ----

METHODS = ["RegisterTensors", "PutParameters", "PutParametersInline", "WaitReady", "Push", "PushInline", "Flush", "WaitStep",
           "GetParameters", "AckStep", "PutTrainerState", "GetTrainerState", "WatchSession", "Detach"]
STRANGE_SESSIONS = [
    ("fenced", ABORTED, "SESSION_FENCED", r"rank 1 of job \d+ \(pid", "end this process"),
    ("guessed", ABORTED, "SESSION_UNKNOWN", r"rank 0 of job \d+", "attach again"),
]
MORE_STRANGE_SESSIONS = [
    ("zero token", ABORTED, "SESSION_UNKNOWN", r"rank 0 of job \d+", "attach again"),
    ("no token", ABORTED, "SESSION_UNKNOWN", "0 bytes, must have 16", "attach again"),
    ("short token", ABORTED, "SESSION_UNKNOWN", "15 bytes, must have 16", "attach again"),
    ("long token", ABORTED, "SESSION_UNKNOWN", "17 bytes, must have 16", "attach again"),
    ("own token, victim's id", ABORTED, "SESSION_UNKNOWN", r"rank 1 of job \d+", "attach again"),
    ("victim's token, own id", ABORTED, "SESSION_UNKNOWN", r"rank 0 of job \d+", "attach again"),
    ("no such rank", ABORTED, "SESSION_UNKNOWN", r"rank 2 of job \d+", "attach again"),
    ("no such job", ABORTED, "SESSION_UNKNOWN", r"session \d+ is of no job", "attach again"),
    ("highest id", ABORTED, "SESSION_UNKNOWN", f"session {MAX64} is of no job", "attach again"),
    ("ended", PRECONDITION, "JOB_ENDED", r"job \d+ has ended: cancelled", "submit a new job"),
]


def with_session(method, name):
    def send(s):
        session = s.sessions.get(name)
        request = {"header": {"session": session, "window": 0}} if method == "PushInline" else {"session": session}
        return s.call(f"GradientService/{method}", [request])
    return send


SESSIONS = [Row(f"session-{name}-{method}".replace(" ", "-"), with_session(method, name), code, reason, value, hint)
            for method in METHODS for name, code, reason, value, hint in STRANGE_SESSIONS]
SESSIONS += [Row(f"session-missing-{method}", with_session(method, None), ABORTED, "SESSION_UNKNOWN", "session is missing", "attach again")
             for method in METHODS]
SESSIONS += [Row(f"session-{name}".replace(" ", "-").replace(",", "").replace("'", ""), with_session("Push", name), code, reason, value, hint)
             for name, code, reason, value, hint in MORE_STRANGE_SESSIONS]


# ---- RegisterTensors ----


def tensors(*specs, session="fresh"):
    """specs: (name, shape, dtype, alias_of), the latter two may be left out."""
    def spec(name, shape, dtype=1, alias_of=""):
        return {"name": name, "shape": shape, "dtype": dtype, "alias_of": alias_of}
    return rpc("GradientService/RegisterTensors", tensors=[spec(*t) for t in specs], session=session)


W, B = ("w", [40, 70]), ("b", [70])
REGISTER = [
    Row("tensors-not-declared", tensors(), PRECONDITION, "NOT_READY", "no rank has declared", "register the tensors"),
    Row("tensor-without-a-name", tensors(("", [1])), INVALID, "INVALID_ARGUMENT", "tensor 0 has no name", "correct"),
    Row("tensor-name-long", tensors(("n" * 256, [1])), INVALID, "INVALID_ARGUMENT", "nnn.*longer than 255", "correct"),
    Row("tensor-named-twice", tensors(W, B, W), INVALID, "INVALID_ARGUMENT", "tensors 0 and 2 are both named 'w'", "correct"),
    Row("tensor-dtype-none", tensors(("w", [1], 0)), INVALID, "INVALID_ARGUMENT", r"'w': dtype none \(0\)", "correct"),
    Row("tensor-dtype-f64", tensors(("w", [1], 2)), INVALID, "INVALID_ARGUMENT", "'w': dtype f64", "correct"),
    Row("tensor-dtype-unknown", tensors(("w", [1], 99)), INVALID, "INVALID_ARGUMENT", r"'w': dtype \? \(99\)", "correct"),
    Row("tensor-dtype-negative", tensors(("w", [1], -5)), INVALID, "INVALID_ARGUMENT", r"'w': dtype \? \(-5\)", "correct"),
    Row("tensor-dimension-0", tensors(("w", [3, 0])), INVALID, "INVALID_ARGUMENT", "'w': dimension 1 is 0", "correct"),
    Row("tensor-dimension-negative", tensors(("w", [-7])), INVALID, "INVALID_ARGUMENT", "'w': dimension 0 is -7", "correct"),
    Row("tensor-dimension-lowest", tensors(("w", [-2**63, -2**63])), INVALID, "INVALID_ARGUMENT", "dimension 0 is -9223372036854775808",
        "correct"),
    Row("tensor-dimensions-9", tensors(("w", [1] * 9)), INVALID, "INVALID_ARGUMENT", '"w" has 9 dimensions, at most 8', "correct"),
    Row("tensor-overflow", tensors(("w", [2**32, 2**32])), INVALID, "INVALID_ARGUMENT", "'w': more than", "correct"),
    Row("tensor-overflow-to-0", tensors(("w", [2**62, 4])), INVALID, "INVALID_ARGUMENT", "'w': more than", "correct"),
    Row("tensors-overflow-together", tensors(*[(f"w{i}", [2**59]) for i in range(5)]), INVALID, "INVALID_ARGUMENT", "would exceed", "correct"),
    Row("tensor-alias-of-nothing", tensors(W, ("t", [1], 1, "v")), INVALID, "INVALID_ARGUMENT", "'t': alias_of 'v' names no", "correct"),
    Row("tensor-alias-of-itself", tensors(("t", [1], 1, "t")), INVALID, "INVALID_ARGUMENT", "alias_of 't' names no earlier", "correct"),
    Row("tensor-alias-of-a-later-one", tensors(("t", [40, 70], 1, "w"), W), INVALID, "INVALID_ARGUMENT", "'w' names no earlier", "correct"),
    Row("tensor-alias-of-another-shape", tensors(W, ("t", [70, 40], 1, "w")), INVALID, "INVALID_ARGUMENT",
        r"\[70, 40\] but its alias_of 'w' is f32 \[40, 70\]", "correct"),
    Row("tensor-alias-of-another-dtype", tensors(W, ("t", [40, 70], 4, "w")), INVALID, "INVALID_ARGUMENT", "is bf16 .* 'w' is f32", "correct"),
    Row("tensors-beyond-the-memory", tensors(("w", [2**36])), "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED", r"needs 2\.\d TiB", "limits.host_memory"),
    Row("tensors-one-less", tensors(W, session="own"), INVALID, "LAYOUT_MISMATCH", "1 tensors.*2|2 tensors against 1|'b'", "same tensors"),
    Row("tensors-one-more", tensors(W, B, ("c", [1]), session="own"), INVALID, "LAYOUT_MISMATCH", "'c'", "same tensors"),
    Row("tensors-other-name", tensors(W, ("bias", [70]), session="own"), INVALID, "LAYOUT_MISMATCH", "tensor 1 .*'b.*'bias|'bias' .*'b'", "same tensors"),
    Row("tensors-other-shape", tensors(("w", [70, 40]), B, session="own"), INVALID, "LAYOUT_MISMATCH",
        r"'w': shape .*\[40, 70\]", "same tensors"),
    Row("tensors-other-dtype", tensors(W, ("b", [70], 4), session="own"), INVALID, "LAYOUT_MISMATCH", "'b': dtype .*bf16", "same tensors"),
    Row("tensors-swapped", tensors(B, W, session="own"), INVALID, "LAYOUT_MISMATCH", "tensor 0 .*'w'", "same order"),
    Row("tensors-alias", tensors(W, B, ("t", [70], 1, "b"), session="own"), INVALID, "LAYOUT_MISMATCH", "'t'", "same tensors"),
]


# ---- parameters ----


def put(**fields):
    return rpc("GradientService/PutParameters", session="unfilled", **fields)


def put_inline(*messages):
    return rpc("GradientService/PutParametersInline", *messages, session="unfilled")


def get(session="own", **fields):
    return rpc("GradientService/GetParameters", session=session, **fields)


PARAM_BYTES = "parameters 1\\d{4}"
PARAMETERS = [
    Row("put-before-the-tensors", rpc("GradientService/PutParameters", session="fresh", bytes=4), PRECONDITION, "NOT_READY", "no memory yet",
        "RegisterTensors"),
    Row("put-inline-before-the-tensors", rpc("GradientService/PutParametersInline", {"data": b"1234"}, session="fresh"), PRECONDITION,
        "NOT_READY", "no memory yet", "RegisterTensors"),
    Row("put-slot-2", put(slot=2, bytes=4), INVALID, "INVALID_ARGUMENT", "slot 2", "parameter layout"),
    Row("put-slot-highest", put(slot=MAX32, bytes=4), INVALID, "INVALID_ARGUMENT", f"slot {MAX32}", "parameter layout"),
    Row("put-more-than-a-slot", put(bytes=1 << 20), INVALID, "INVALID_ARGUMENT", "bytes 1048576: slots hold", "parameter layout"),
    Row("put-past-the-end", put(offset=12284, bytes=8), INVALID, "INVALID_ARGUMENT", f"offset 12284, bytes 8.*{PARAM_BYTES}", "must lie"),
    Row("put-offset-highest", put(offset=MAX64, bytes=8), INVALID, "INVALID_ARGUMENT", f"offset {MAX64}", "must lie"),
    Row("put-bytes-highest", put(bytes=MAX64), INVALID, "INVALID_ARGUMENT", f"bytes {MAX64}", "must lie"),
    Row("put-sum-wraps-around", put(offset=2**63, bytes=2**63), INVALID, "INVALID_ARGUMENT", f"offset {2**63}", "must lie"),
    Row("put-inline-past-the-end", put_inline({"offset": 12288, "data": b"12345678"}), INVALID, "INVALID_ARGUMENT", "offset 12288, bytes 8",
        "must lie"),
    Row("put-inline-offset-highest", put_inline({"offset": MAX64, "data": b"12345678"}), INVALID, "INVALID_ARGUMENT", f"offset {MAX64}",
        "must lie"),
    Row("put-inline-without-last", put_inline({"data": b"1234"}), INVALID, "INVALID_ARGUMENT", "without `last`", "correct"),
    Row("get-before-there-are-any", get("unfilled"), PRECONDITION, "NOT_READY", "not there yet", "WaitReady"),
    Row("get-past-the-end", get(offset=20000), INVALID, "INVALID_ARGUMENT", "offset 20000, bytes 0: the parameters have 1", "correct"),
    Row("get-more-than-there-is", get(bytes=1 << 30), INVALID, "INVALID_ARGUMENT", f"bytes {1 << 30}: the parameters have 1", "correct"),
    Row("get-sum-wraps-around", get(offset=8, bytes=MAX64), INVALID, "INVALID_ARGUMENT", f"bytes {MAX64}", "correct"),
    Row("get-reduced-of-a-daemon-optimizer", get(reduced_gradients=True), PRECONDITION, "NOT_SUPPORTED", "optimizer is sgd", "client"),
    Row("wait-ready-in-vain", rpc("GradientService/WaitReady", session="unfilled", timeout_ms=20), "DEADLINE_EXCEEDED", "STALLED",
        "the job has not started: it waits for the initial parameters: no rank has given all of them", "gaccctl status"),
]


# ---- the window ----


def push(session="own", **fields):
    """The attacker's next push as it should be, but for `fields`."""
    def send(s):
        request = s.attacker.push_request(**{**dict(window=s.attacker.window, micro=1, slot=1, data_key=KEY + 1)})
        for name, value in fields.items():
            setattr(request, name, value(s) if callable(value) else value)
        return s.call("GradientService/Push", [request])
    return send


def at(distance):
    return lambda s: s.attacker.window + distance


def in_window(method, **fields):
    return lambda s: s.call(f"GradientService/{method}", [{
        "session": s.sessions["own"], **{k: v(s) if callable(v) else v for k, v in fields.items()}}])


WINDOW = [
    Row("push-next-window", push(window=at(1)), PRECONDITION, "NOT_CURRENT_WINDOW", r"window (\d+) is open, not", "WaitStep"),
    Row("push-far-window", push(window=at(1000)), PRECONDITION, "NOT_CURRENT_WINDOW", r"not 10\d\d", "WaitStep"),
    Row("push-window-highest", push(window=MAX64), PRECONDITION, "NOT_CURRENT_WINDOW", str(MAX64), "WaitStep"),
    Row("push-into-a-closed-window", push(window=at(-1), micro=MAX32), PRECONDITION, "WINDOW_CLOSED", str(MAX32), "open window"),
    Row("push-micro-3-of-3", push(micro=3), PRECONDITION, "WINDOW_FULL", r"index 3: .*0\.\.2", "WaitStep"),
    Row("push-micro-highest", push(micro=MAX32), PRECONDITION, "WINDOW_FULL", str(MAX32), "WaitStep"),
    Row("push-out-of-order", push(micro=2), INVALID, "OUT_OF_ORDER", "micro-batch 2 of rank 0: 1 of 3 is expected", "ascending"),
    Row("push-other-samples", push(micro=0, data_key=KEY + 5), INVALID, "DATA_KEY_MISMATCH", "micro-batch 0|data_key", "one set of samples|\\w"),
    Row("push-slot-2", push(slot=2), INVALID, "BAD_SLOT", "slot 2: this session has 2", "numbered from 0"),
    Row("push-slot-highest", push(slot=MAX32), INVALID, "BAD_SLOT", f"slot {MAX32}", "numbered from 0"),
    Row("push-weight-0", push(weight=0), INVALID, "BAD_WEIGHT", "weight is 0", "samples or tokens"),
    Row("push-weight-minus-0", push(weight=-0.0), INVALID, "BAD_WEIGHT", "weight is -?0", "samples or tokens"),
    Row("push-weight-subnormal", push(weight=1e-310), INVALID, "BAD_WEIGHT", "weight is 1e-310: it must be 2.22507e-308..1.79769e[+]308", "samples or tokens"),
    Row("push-lr-beyond-f32", push(lr=3.5e38), INVALID, "INVALID_ARGUMENT", "lr is 3.5e[+]38: it must be 0..3.40282e[+]38", "schedule"),
    Row("push-weight-negative", push(weight=-3), INVALID, "BAD_WEIGHT", "weight is -3", "samples or tokens"),
    Row("push-weight-nan", push(weight=NAN), INVALID, "BAD_WEIGHT", "weight is -?nan", "samples or tokens"),
    Row("push-weight-inf", push(weight=INF), INVALID, "BAD_WEIGHT", "weight is inf", "samples or tokens"),
    Row("push-weight-minus-inf", push(weight=-INF), INVALID, "BAD_WEIGHT", "weight is -inf", "samples or tokens"),
    Row("push-lr-negative", push(lr=-0.1), INVALID, "INVALID_ARGUMENT", "lr is -0.1", "learning rate"),
    Row("push-lr-nan", push(lr=NAN), INVALID, "INVALID_ARGUMENT", "lr is -?nan", "learning rate"),
    Row("push-lr-inf", push(lr=INF), INVALID, "INVALID_ARGUMENT", "lr is inf", "learning rate"),
    Row("push-scale-2", push(loss_scale=2), PRECONDITION, "LOSS_SCALE_MISMATCH", "scale 2, the window's is 1", "WaitReady or WaitStep"),
    Row("push-scale-nan", push(loss_scale=NAN), PRECONDITION, "LOSS_SCALE_MISMATCH", "scale -?nan", "WaitReady or WaitStep"),
    Row("push-scale-inf", push(loss_scale=INF), PRECONDITION, "LOSS_SCALE_MISMATCH", "scale inf", "WaitReady or WaitStep"),
    Row("push-scale-negative", push(loss_scale=-1), PRECONDITION, "LOSS_SCALE_MISMATCH", "scale -1", "WaitReady or WaitStep"),
    Row("push-present-long", push(present=b"\1\0"), INVALID, "INVALID_ARGUMENT", "present has 2 bytes, 2 tensors need 1", "one bit"),
    Row("push-present-huge", push(present=b"\1" * 100000), INVALID, "INVALID_ARGUMENT", "present has 100000 bytes", "one bit"),
    Row("push-present-strange-bit", push(present=b"\4"), INVALID, "INVALID_ARGUMENT", "bits past tensor 1", "order of registration"),
    Row("push-before-the-job-runs", rpc("GradientService/Push", session="unfilled", weight=1), PRECONDITION, "NOT_READY", r"job \d+ is not running",
        "WaitReady"),
    Row("flush-next-window", in_window("Flush", window=at(1)), PRECONDITION, "NOT_CURRENT_WINDOW", r"is open, not \d", "open window"),
    Row("flush-window-highest", in_window("Flush", window=MAX64), PRECONDITION, "NOT_CURRENT_WINDOW", str(MAX64), "open window"),
    Row("flush-before-the-job-runs", rpc("GradientService/Flush", session="unfilled"), PRECONDITION, "NOT_READY", r"job \d+", "WaitReady"),
    Row("wait-next-window", in_window("WaitStep", window=at(1)), PRECONDITION, "NOT_CURRENT_WINDOW", r"is open, not \d", "open window"),
    Row("wait-window-highest", in_window("WaitStep", window=MAX64), PRECONDITION, "NOT_CURRENT_WINDOW", str(MAX64), "open window"),
    Row("wait-in-vain", in_window("WaitStep", window=at(0), timeout_ms=20), "DEADLINE_EXCEEDED", "STALLED|DEADLINE", "rank|0, 1", "."),
]


# ---- PushInline ----


def inline(*messages, header=True, **fields):
    """A stream whose first message has the attacker's next push for a header."""
    def send(s):
        request = s.attacker.push_request(**{**dict(window=s.attacker.window, micro=1, data_key=KEY + 1), **fields})
        first = {**messages[0], **({"header": request} if header else {})}
        return s.call("GradientService/PushInline", [first, *messages[1:]])
    return send


SLOT = 4 * (2816 + 96)  # w and b, each rounded up to 32 elements; the rest of a slot is padding
PUSH_INLINE = [
    Row("inline-without-a-header", inline({"data": b"1234"}, header=False), INVALID, "INVALID_ARGUMENT", "must have a header", "correct"),
    Row("inline-past-the-slot", inline({"offset": 1 << 20, "data": b"1234"}), INVALID, "INVALID_ARGUMENT", "offset 1048576", "correct"),
    Row("inline-offset-highest", inline({"offset": MAX64, "data": b"1234"}), INVALID, "INVALID_ARGUMENT", f"offset {MAX64}", "correct"),
    Row("inline-chunk-too-long", inline({"data": bytes(1 << 20)}), INVALID, "INVALID_ARGUMENT", "1048576 bytes: a slot holds", "correct"),
    Row("inline-checksum", inline({"data": bytes(SLOT), "xxh3": 5}), "DATA_LOSS", "CHECKSUM", "chunk at offset 0", "again"),
    Row("inline-later-checksum", inline({"data": bytes(64)}, {"offset": 64, "data": bytes(64), "xxh3": 5}), "DATA_LOSS", "CHECKSUM",
        "chunk at offset 64", "again"),
    Row("inline-with-a-hole", inline({"data": bytes(100)}, {"offset": 104, "data": bytes(SLOT - 104)}), INVALID, "INVALID_ARGUMENT",
        'do not cover tensor "w"', "correct"),
    Row("inline-without-the-last-tensor", inline({"data": bytes(4 * 2816)}), INVALID, "INVALID_ARGUMENT", 'do not cover tensor "b"', "correct"),
    Row("inline-in-too-many-pieces", inline(*[{"offset": 2 * i, "data": b"x"} for i in range(4097)]), "RESOURCE_EXHAUSTED",
        "RESOURCE_EXHAUSTED", "more than 4096", "."),
    Row("inline-weight-nan", inline({"data": bytes(SLOT)}, weight=NAN), INVALID, "BAD_WEIGHT", "nan", "samples or tokens"),
    Row("inline-next-window", inline({"data": bytes(SLOT)}, window=MAX64), PRECONDITION, "NOT_CURRENT_WINDOW", str(MAX64), "WaitStep"),
    Row("inline-out-of-order", inline({"data": bytes(SLOT)}, micro=2), INVALID, "OUT_OF_ORDER", "micro-batch 2", "ascending"),
    Row("inline-present-long", inline({"data": bytes(SLOT)}, present=[True] * 9), INVALID, "INVALID_ARGUMENT", "present has 2 bytes", "."),
]


# ---- another user, with what it has stolen ----


def nobody(method, session="own", **fields):
    def send(s):
        request = {k: v(s) if callable(v) else v for k, v in fields.items()}
        if session:
            request["session"] = s.sessions[session]
        return s.call_as_nobody(method, request)
    return send


DENIED = ("PERMISSION_DENIED", "PERMISSION_DENIED", f"uid 0, this is uid {NOBODY}", "owner")
UNSEEN = (NOT_FOUND, "JOB_NOT_FOUND", r'no job "\d+" that you may see', "gaccctl jobs")
USERS = [Row(f"nobody-{m}", nobody(f"GradientService/{m}"), *DENIED) for m in METHODS if m not in ("PushInline", "PutParametersInline")]
USERS += [
    Row("nobody-PushInline", lambda s: s.call_as_nobody("GradientService/PushInline", {"header": {"session": s.sessions["own"]}}), *DENIED),
    Row("nobody-victims-session", nobody("GradientService/Push", "victim"), *DENIED),
    Row("nobody-attaches", nobody("GradientService/Attach", None, job=lambda s: str(s.job), world_size=2, nonce=bytes(16), protocol_min=1,
                                  protocol_max=1), *UNSEEN),
    *[Row(f"nobody-job-{m}", nobody(f"JobService/{m}", None, job=lambda s: str(s.job)), *UNSEEN) for m in ("Get", "Watch", "Cancel", "Flush")],
    Row("nobody-maps", lambda s: s.as_nobody({"packet": s.map_request().hex()}), "REFUSED", *DENIED[1:]),
]
