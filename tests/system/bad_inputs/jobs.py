# SPDX-License-Identifier: Apache-2.0
"""JobService: specifications that make no sense, jobs that are not there."""
import os

from bad_inputs import Row, rpc

NAN, INF, MAX32 = float("nan"), float("inf"), 2**32 - 1
SPEC = dict(name="bad", ranks=2, micro_size=2, optimizer={"type": "sgd", "lr": 0.1})
ADAM = {"type": "adam", "lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
W = {"name": "w", "shape": [40, 70], "dtype": 1}


def submit(**fields):
    return lambda s: s.call("JobService/Submit", [{"spec": s.types.spec(**{**SPEC, **fields}), "request_id": os.urandom(16)}])


def spec(what, value, /, **fields):
    return Row(f"spec-{what}", submit(**fields), "INVALID_ARGUMENT", "INVALID_SPEC", value, "gaccctl config schema")


def sgd(**fields):
    return {"type": "sgd", "lr": 0.1, **fields}


SPECS = [
    spec("name-empty", "name is empty", name=""),
    spec("name-long", "name has 128 bytes, at most 127", name="n" * 128),
    spec("name-with-a-line-break", "0x0a at byte 3", name="two\nlines"),
    spec("name-with-an-escape", "0x1b at byte 0", name="\x1b[2J"),
    spec("ranks-0", r"ranks is 0, must be 1\.\.65536", ranks=0),
    spec("ranks-65537", "ranks is 65537", ranks=65537),
    spec("ranks-highest", f"ranks is {MAX32}", ranks=MAX32),
    spec("micro-size-0", "micro_size is 0", micro_size=0),
    spec("micro-size-65537", "micro_size is 65537", micro_size=65537),
    spec("max-micro-size-below", r"max_micro_size is 1, must be micro_size \(2\)", max_micro_size=1),
    spec("max-micro-size-highest", f"max_micro_size is {MAX32}", max_micro_size=MAX32),
    spec("parts-17", "parts is 17, must be 1..16", parts=17, ranks=32),
    spec("parts-without-ranks", r"parts is 3, must be 1..16, and not more than ranks \(2\)", parts=3, ranks=2),
    spec("slots-3", "slots_per_rank is 3", slots_per_rank=3),
    spec("reduction-9", "reduction 9 is unknown", reduction=9),
    spec("reduction-negative", "reduction -1 is unknown", reduction=-1),
    spec("divisor-0", "fixed_divisor is 0", reduction=4),
    spec("divisor-negative", "fixed_divisor is -8", reduction=4, fixed_divisor=-8),
    spec("divisor-nan", "fixed_divisor is -?nan", reduction=4, fixed_divisor=NAN),
    spec("divisor-inf", "fixed_divisor is inf", reduction=4, fixed_divisor=INF),
    spec("grad-of-9", "grad_of 9 is unknown", grad_of=9),
    spec("uneven-9", "uneven 9 is unknown", uneven=9),
    spec("nonfinite-9", "nonfinite 9 is unknown", nonfinite=9),
    spec("ordering-9", "ordering 9 is unknown", ordering=9),
    spec("master-9", "master 9 is unknown", master=9),
    spec("launch-9", "launch 9 is unknown", launch=9),
    spec("accumulate-in-bf16", "accumulate_dtype is bf16", accumulate_dtype=4),
    spec("accumulate-in-77", r"accumulate_dtype is \? \(77\)", accumulate_dtype=77),
    spec("gradients-in-f64", "gradient_dtype is f64", gradient_dtype=2),
    spec("gradients-in-77", r"gradient_dtype is \? \(77\)", gradient_dtype=77),
    spec("clip-norm-negative", "clip_norm is -1", clip_norm=-1),
    spec("clip-norm-nan", "clip_norm is -?nan", clip_norm=NAN),
    spec("clip-value-inf", "clip_value is inf", clip_value=INF),
    spec("loss-scale-negative", "loss_scale is -2", loss_scale=-2),
    spec("loss-scale-nan", "loss_scale is -?nan", loss_scale=NAN),
    spec("stall-abort-before-warn", r"stall_abort \(5 ms\).*stall_warn \(10 ms\)", stall_warn_ms=10, stall_abort_ms=5),
    spec("optimizer-missing", "optimizer.type is missing", optimizer={}),
    spec("optimizer-99", "optimizer.type: 99", optimizer={"type": 99}),
    spec("lr-negative", "optimizer.lr: -1", optimizer=sgd(lr=-1)),
    spec("lr-nan", "optimizer.lr: -?nan", optimizer=sgd(lr=NAN)),
    spec("momentum-negative", "optimizer.momentum: -0.9", optimizer=sgd(momentum=-0.9)),
    spec("dampening-nan", "optimizer.dampening: -?nan", optimizer=sgd(dampening=NAN)),
    spec("nesterov-without-momentum", "optimizer.nesterov: .* not 0 and 0", optimizer=sgd(nesterov=True)),
    spec("nesterov-with-dampening", "not 0.9 and 0.1", optimizer=sgd(nesterov=True, momentum=0.9, dampening=0.1)),
    spec("weight-decay-negative", "optimizer.weight_decay: -1", optimizer=sgd(weight_decay=-1)),
    spec("beta1-1", r"optimizer.beta1: 1 is outside \[0, 1\)", optimizer={**ADAM, "beta1": 1}),
    spec("beta1-negative", "optimizer.beta1: -0.1", optimizer={**ADAM, "beta1": -0.1}),
    spec("beta2-nan", "optimizer.beta2: -?nan", optimizer={**ADAM, "beta2": NAN}),
    spec("eps-0", "optimizer.eps: 0", optimizer={**ADAM, "eps": 0}),
    spec("eps-inf", "optimizer.eps: inf", optimizer={**ADAM, "eps": INF}),
    spec("schedule-99", "schedule.type: 99", schedule={"type": 99}),
    spec("warm-up-of-a-constant", "warmup_steps: 5 has no effect", schedule={"type": "constant", "warmup_steps": 5}),
    spec("warm-up-of-no-steps", "warmup_steps: must be at least 1", schedule={"type": "linear_warmup"}),
    spec("warm-up-from-above", "warmup_start_factor: 2", schedule={"type": "linear_warmup", "warmup_steps": 5, "warmup_start_factor": 2}),
    spec("cosine-without-an-end", r"total_steps: 0 must be greater than warmup_steps \(0\)", schedule={"type": "cosine"}),
    spec("cosine-below-0", "min_factor: -0.5", schedule={"type": "cosine", "total_steps": 5, "min_factor": -0.5}),
    spec("steps-of-0", "step_size: must be at least 1", schedule={"type": "step", "gamma": 0.1}),
    spec("gamma-nan", "gamma: -?nan", schedule={"type": "step", "step_size": 1, "gamma": NAN}),
    spec("group-without-a-pattern", r"param_groups\[1\].pattern is empty", param_groups=[{"pattern": "*", "lr_scale": 1}, {}]),
    spec("group-that-learns-backwards", r"param_groups\[0\].lr_scale is -1", param_groups=[{"pattern": "*", "lr_scale": -1}]),
    spec("group-that-does-not-learn", r"lr_scale is 0.*frozen: true", param_groups=[{"pattern": "*"}]),
    spec("group-decay-nan", "weight_decay is -?nan", param_groups=[{"pattern": "*", "lr_scale": 1, "weight_decay": NAN}]),
    spec("groups-257", "257 param_groups", param_groups=[{"pattern": "*", "lr_scale": 1}] * 257),
    spec("init-without-a-pattern", r"init\[0\].pattern is empty", init=[{"type": "ones"}]),
    spec("init-of-no-type", r"init\[0\].type 0 is unknown", init=[{"pattern": "*"}]),
    spec("init-99", r"init\[0\].type 99 is unknown", init=[{"pattern": "*", "type": 99}]),
    spec("init-nan", r"init\[0\]: a is -?nan and b is 1", init=[{"pattern": "*", "type": "normal", "a": NAN, "b": 1}]),
    spec("init-rules-257", "257 init rules", init=[{"pattern": "*", "type": "ones"}] * 257),
    spec("log-dir-long", "log_dir has 5000 bytes", log_dir="/" * 5000),
    spec("checkpoint-dir-long", "checkpoint.dir has 3841 bytes, at most 3840", checkpoint={"dir": "/" * 3841}),
    spec("restore-from-long", "restore_from has 3841 bytes, at most 3840", restore_from="/" * 3841),
    spec("labels-257", "257 labels, at most 256", labels=[{"key": "k", "value": "v"}] * 257),
    Row("spec-tensor-twice", submit(tensors=[W, W]), "INVALID_ARGUMENT", "INVALID_ARGUMENT", "0 and 1 are both named 'w'", "correct"),
    Row("spec-beyond-the-memory", submit(tensors=[{**W, "shape": [2**36]}]), "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED",
        r"needs 2\.\d TiB", "limit"),
    spec("micro-batches-of-all", "max_micro_size is 65536 for 65536 ranks", ranks=65536, micro_size=65536),
]


def submitted_twice(s):
    request_id, specs = os.urandom(16), [s.types.spec(**{**SPEC, "name": "twice", "ranks": ranks}) for ranks in (1, 2)]
    first, second = [s.call("JobService/Submit", [{"spec": x, "request_id": request_id}]) for x in specs]
    assert first.code == "OK"
    s.daemon.cancel(s.client.jobs.Get(job="twice").job.id)
    return second


def one_too_many(s):
    """Until the limit; gives back what it took."""
    answer, n = None, 0
    while not answer or answer.code == "OK":
        answer = submit(name=f"many{n}")(s)
        n += 1
    for i in range(n - 1):
        s.daemon.cancel(s.client.jobs.Get(job=f"many{i}").job.id)
    return answer


def on(method, job, **fields):
    return lambda s: s.call(f"JobService/{method}", [{"job": job if isinstance(job, str) else str(job(s)), **fields}])


def fresh(s):
    return s.jobs["fresh"]


def ended(s):
    return s.jobs["ended"]


CALLS = [
    Row("submit-nothing", rpc("JobService/Submit", request_id=bytes(16)), "INVALID_ARGUMENT", "INVALID_ARGUMENT", "spec is missing", "correct"),
    *[Row(f"submit-request-id-{n}", rpc("JobService/Submit", spec={"name": "x"}, request_id=bytes(n)), "INVALID_ARGUMENT", "INVALID_ARGUMENT",
          f"request_id has {n} bytes", "correct") for n in (0, 15, 17, 70000)],
    Row("submit-another-under-the-same-id", submitted_twice, "ALREADY_EXISTS", "ALREADY_EXISTS", "request id", "another name|same spec"),
    Row("submit-too-many", one_too_many, "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED", "limits.jobs_per_user is 12", "raise the limit"),
    Row("flush-a-job-without-windows", on("Flush", fresh), "FAILED_PRECONDITION", "NOT_READY", r"job \d+", "WaitReady"),
    Row("flush-an-ended-job", on("Flush", ended), "FAILED_PRECONDITION", "JOB_ENDED", r"job \d+", "submit a new job"),
]


def of_every_job_method(types):
    """Every method of JobService that names a job, with names that name none."""
    rows = []
    for method in types.pool.FindServiceByName("gacc.v1.JobService").methods:
        if "job" in method.input_type.fields_by_name and method.name != "ListEvents":
            request = {"request_id": b"r" * 16} if "request_id" in method.input_type.fields_by_name else {}
            rows += [Row(f"{method.name}-{what}", on(method.name, job, **request), "NOT_FOUND", "JOB_NOT_FOUND", f'no job "{job[:20]}', "gaccctl jobs")
                     for what, job in (("nothing", ""), ("unknown-job", "nope"), ("unknown-number", "4000000000"))]
    return rows
