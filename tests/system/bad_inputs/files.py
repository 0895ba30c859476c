# SPDX-License-Identifier: Apache-2.0
"""Files: job files (gaccctl config validate) and gaccd's configuration (gaccd --check-config). Each error begins with FILE:LINE:COLUMN, or
names the argument, and says what would be right, often the nearest key."""
from bad_inputs import Row

DEEP = "[" * 100000 + "]" * 100000
LONG = b"#" * (65 << 20)


FILE = object()  # in a command: the file
VALIDATE, CHECK = ("gaccctl", "config", "validate"), ("gaccd", "--check-config", "--config")


def row(name, command, value, hint=None, text="", where="", **environment):
    """`text`: what is in the file; `where`: line and column of it. Without `hint` the value's words say what would be right."""
    def send(s):
        return s.program(*(s.file(text) if word is FILE else word for word in command), **environment)
    return Row(name, send, "exit 2", "", f"input{where}.*{value}" if where else value, hint or value)


def job(what, text, where, value, hint=None):
    """Lines of the file's spec begin with two spaces."""
    return row(f"job-file-{what}", (*VALIDATE, FILE), value, hint, text, where)


def conf(what, text, where, value, hint=None):
    return row(f"conf-{what}", (*CHECK, FILE), value, hint, text, where)


def setting(what, key_value, value, hint):
    return row(f"set-{what}", (*CHECK, FILE, "--set", key_value), value, hint)


def variable(what, name, text, value, hint):
    return row(f"env-{what}", (*CHECK, FILE), value, hint, **{name: text})


SGD = "  optimizer: { type: sgd }\n"
JOBS = [
    job("empty", "", "", "no optimizer: client, sgd, adam, adamw or lamb", "is needed"),
    job("no-mapping", "- a\n- b\n", ":1:1:", "must be a mapping of keys"),
    job("scalar", "just text\n", ":1:1:", "must be a mapping of keys"),
    job("open-brace", "spec: { ranks: 2\n", ":2:1:", r"did not find expected ',' or '\}'"),
    job("tab", "spec:\n\tranks: 2\n", ":2:1:", "found character that cannot start any token", "with spaces, not tabs"),
    job("control-character", "spec:\n  ranks: \x01\n", "", "byte 15: control characters", "are not allowed: 0x01"),
    job("not-utf-8", b"spec:\n  ranks: \xff\xfe\n", "", "byte 15: invalid leading UTF-8 octet: 0xff"),
    job("utf-16", "spec:\n  ranks: x\n".encode("utf-16"), "", "byte 0x00", "this is no text"),
    job("nul", b"spec:\n  ranks: 2\0\n", "", "byte 0x00", "this is no text"),
    job("deep", "spec: " + DEEP, ":1:263", "more than 256", "open brackets"),
    job("long", LONG, "", "File too large"),
    job("alias-bomb", "a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a]\nspec: [*b,*b,*b,*b]\n", ":1:1:", 'unknown key "a"', "there are api_version, kind, metadata, spec"),
    job("anchor-unknown", "spec: *nothing\n", ":1:7:", "found undefined alias"),
    job("two-documents", "spec: {}\n---\nspec: {}\n", ":3:1:", "a second document", "one file is one document"),
    job("key-unknown", "spec:\n  rank: 2\n", ":2:3:", 'unknown key "rank" in spec', r'did you mean "ranks"\?'),
    job("key-far-from-any", "spec:\n  xyzzy: 2\n", ":2:3:", 'unknown key "xyzzy" in spec', "there are ranks, micro_size, gradient_ac"),
    job("section-unknown", "specs:\n  ranks: 2\n", ":1:1:", 'unknown key "specs"', r'did you mean "spec"\?'),
    job("key-twice", "spec:\n  ranks: 2\n  ranks: 3\n", ":3:3:", '"ranks"', "sets ranks a second time"),
    job("key-and-its-alias", "spec:\n  micro_size: 2\n  gradient_accumulation_steps: 3\n", ":3:3:", '"gradient_accumulation_steps"', "sets micro_size a second time"),
    job("nested-key-unknown", "spec:\n  optimizer:\n    typ: sgd\n", ":3:5:", r'unknown key "typ" in spec\.optimizer', r'did you mean "type"\?'),
    job("section-as-scalar", "spec:\n  optimizer: sgd\n", ":2:14:", r"spec\.optimizer", "must be a mapping of keys"),
    job("scalar-as-section", "spec:\n  ranks: { n: 2 }\n", ":2:10:", r"spec\.ranks", "must be one value"),
    job("list-as-scalar", "spec:\n  tensors: w\n", ":2:12:", r"spec\.tensors", "must be a list"),
    job("scalar-as-list", "spec:\n  ranks: [2]\n", ":2:10:", r"spec\.ranks", "must be one value"),
    job("version", "api_version: gacc/v9\n", ":1:14:", 'api_version: "gacc/v9"', r'is none of gacc/v1; did you mean "gacc/v1"\?'),
    job("kind", "kind: Pod\n", ":1:7:", 'kind: "Pod"', "is none of Job"),
    job("name-long", f"metadata: {{ name: {'n' * 200} }}\n", ":1:19:", r"metadata\.name: is 200 bytes long", r"must be 0\.\.127"),
    job("name-with-an-escape", 'metadata: { name: "a\\eb" }\n', ":1:19:", r"metadata\.name: control characters", "are not allowed: 0x1b at byte 1"),
    job("ranks-0", "spec:\n  ranks: 0\n", ":2:10:", r'spec\.ranks: "0"', r"must be in 1\.\.65536"),
    job("ranks-negative", "spec:\n  ranks: -1\n", ":2:10:", r'spec\.ranks: "-1"', "is not a whole number >= 0"),
    job("ranks-fraction", "spec:\n  ranks: 2.5\n", ":2:10:", r'spec\.ranks: "2\.5"', "is not a whole number >= 0"),
    job("ranks-word", "spec:\n  ranks: two\n", ":2:10:", r'spec\.ranks: "two"', "is not a whole number >= 0"),
    job("ranks-beyond-32-bits", "spec:\n  ranks: 4294967297\n", ":2:10:", r"spec\.ranks: 4294967297", "is too big: the most is 4294967295"),
    job("steps-beyond-64-bits", "spec:\n  steps: 18446744073709551616\n", ":2:10:", r"spec\.steps: 18446744073709551616", "is too big: the most is 18446744073709551615"),
    job("hexadecimal", "spec:\n  ranks: 0x10\n", ":2:10:", r'spec\.ranks: "0x10"', "is not a whole number >= 0"),
    job("null", "spec:\n  ranks:\n", ":2:9:", r'spec\.ranks: ""', "is not a whole number >= 0"),
    job("slots-3", "spec:\n  slots_per_rank: 3\n", ":2:19:", r'spec\.slots_per_rank: "3"', r"must be in 1\.\.2"),
    job("reduction", "spec:\n  reduction: meen\n", ":2:14:", r'spec\.reduction: "meen"', 'did you mean "mean"'),
    job("dtype", "spec:\n  accumulate_dtype: f31\n", ":2:21:", r'spec\.accumulate_dtype: "f31"', 'did you mean "f32"'),
    job("clip-nan", "spec:\n  clip_norm: .nan\n", ":2:14:", r'spec\.clip_norm: "\.nan"', "is not a finite number"),
    job("clip-word", "spec:\n  clip_norm: nan\n", ":2:14:", r'spec\.clip_norm: "nan"', "is not a finite number"),
    job("clip-negative", "spec:\n  clip_norm: -1\n", ":2:14:", r'spec\.clip_norm: "-1"', "must be at least 0"),
    job("clip-beyond-a-double", "spec:\n  clip_norm: 1e999\n", ":2:14:", r'spec\.clip_norm: "1e999"', "is not a finite number"),
    job("optimizer", "spec:\n  optimizer: { type: adm }\n", ":2:22:", r'spec\.optimizer\.type: "adm"', 'did you mean "adam"'),
    job("betas-of-one", "spec:\n  optimizer: { type: adam, betas: [0.9] }\n", ":2:35:", r"spec\.optimizer\.betas", "must be a list of 2 numbers"),
    job("betas-of-three", "spec:\n  optimizer: { type: adam, betas: [0.9, 0.9, 0.9] }\n", ":2:35:", r"spec\.optimizer\.betas", "must be a list of 2 numbers"),
    job("beta-above-1", "spec:\n  optimizer: { type: adam, betas: [0.9, 2] }\n", ":2:41:", r'spec\.optimizer\.betas: "2"', r"must be in 0\.\.1"),
    job("momentum-of-adam", "spec:\n  optimizer: { type: adam, momentum: 0.9 }\n", ":2:38:", r"spec\.optimizer\.momentum: adam", "has no momentum"),
    job("lr-of-client", "spec:\n  optimizer: { type: client, lr: 0.1 }\n", ":2:34:", r"spec\.optimizer\.lr: client", "has no lr"),
    job("boolean", "spec:\n  optimizer: { type: sgd, nesterov: yes }\n", ":2:37:", r'spec\.optimizer\.nesterov: "yes" is', "neither true nor false"),
    job("time-without-a-unit", "spec:\n  timeouts: { stall_warn: 10 }\n", ":2:27:", r'spec\.timeouts\.stall_warn: "10"', "is not a time: a number and ms, s, m, h "),
    job("time-with-a-wrong-unit", "spec:\n  timeouts: { stall_warn: 10 years }\n", ":2:27:", r'spec\.timeouts\.stall_warn: "10 years"', "is not a time: a number and ms, s, m, h "),
    job("time-negative", "spec:\n  timeouts: { stall_warn: -1s }\n", ":2:27:", r'spec\.timeouts\.stall_warn: "-1s"', "is not a time: a number and ms, s, m, h "),
    job("tensor-shape-0", "spec:\n" + SGD + "  tensors:\n  - { name: w, shape: [0] }\n", ":4:24:", r'spec\.tensors\.shape: "0"', "must be at least 1"),
    job("tensor-shape-word", "spec:\n" + SGD + "  tensors:\n  - { name: w, shape: [two] }\n", ":4:24:", r'spec\.tensors\.shape: "two"', "is not a whole number"),
    job("tensor-dtype", "spec:\n" + SGD + "  tensors:\n  - { name: w, dtype: bf61 }\n", ":4:23:", r'spec\.tensors\.dtype: "bf61"', 'did you mean "f64"'),
    job("init-type", "spec:\n" + SGD + "  init:\n  - { pattern: '*', type: xavier }\n", ":4:27:", r'spec\.init\.type: "xavier"', "is none of zeros, ones, normal, uniform,"),
    job("group-key", "spec:\n" + SGD + "  param_groups:\n  - { patern: '*' }\n", ":4:7:", r'unknown key "patern" in spec\.param_groups', r'did you mean "pattern"\?'),
    job("labels-list", "metadata: { labels: [a, b] }\n", ":1:21:", r"metadata\.labels", "must be a mapping"),
]
CONFS = [
    conf("no-mapping", "- a\n", ":1:1:", "must be a mapping of keys"),
    conf("open-quote", 'log: { level: "info }\n', ":2:1:", "found unexpected end of stream"),
    conf("not-utf-8", b"node: { name: \xff }\n", "", "byte 14: invalid leading UTF-8 octet: 0xff"),
    conf("nul", b"state_dir: a\0b\n", "", "byte 12: control characters", "are not allowed: 0x00"),
    conf("deep", DEEP, ":1:257", "more than 256", "open brackets"),
    conf("long", LONG, "", "File too large"),
    conf("key-unknown", "limits:\n  job: 3\n", ":2:3:", 'unknown key "job" in limits', r'did you mean "jobs"\?'),
    conf("section-unknown", "limit: { jobs: 3 }\n", ":1:1:", 'unknown key "limit"', r'did you mean "limits"\?'),
    conf("section-as-scalar", "limits: 3\n", ":1:9:", "limits", "must be a mapping of keys"),
    conf("key-twice", "state_dir: /a\nstate_dir: /b\n", ":2:1:", '"state_dir"', "sets state_dir a second time"),
    conf("jobs-0", "limits: { jobs: 0 }\n", ":1:17:", r'limits\.jobs: "0"', r"must be in 1\.\.4096"),
    conf("jobs-4097", "limits: { jobs: 4097 }\n", ":1:17:", r'limits\.jobs: "4097"', r"must be in 1\.\.4096"),
    conf("jobs-per-user-above-jobs", "limits:\n  jobs: 2\n  jobs_per_user: 3\n", ":3:18:", r"limits\.jobs_per_user: 3", r"must not exceed limits\.jobs \(2\)"),
    conf("memory-unit", "limits: { host_memory: 64 gigs }\n", ":1:24:", r'limits\.host_memory: "64 gigs"', "is not a size: a number and B, KiB, MiB,"),
    conf("memory-negative", "limits: { host_memory: -1GiB }\n", ":1:24:", r'limits\.host_memory: "-1GiB"', "is not a size: a number and B, KiB, MiB,"),
    conf("memory-beyond", "limits: { host_memory: 99999999999TiB }\n", ":1:24:", r"limits\.host_memory: 99999999999TiB", "is too big"),
    conf("mode-decimal", "listen: { mode: 0999 }\n", ":1:17:", r'listen\.mode: "0999"', 'is not a file mode, as "0660"'),
    conf("mode-beyond", "listen: { mode: '77777' }\n", ":1:17:", r'listen\.mode: "77777"', 'is not a file mode, as "0660"'),
    conf("socket-empty", "listen: { socket: '' }\n", ":1:19:", r"listen\.socket:", "must not be empty"),
    conf("socket-long", f"listen: {{ socket: /{'s' * 200} }}\n", ":1:19:", r"listen\.socket: is 201 bytes long", r"must be 1\.\.100"),
    conf("tcp-without-a-port", "listen: { tcp: localhost }\n", ":1:16:", r'listen\.tcp: "localhost"', "must be HOST:PORT"),
    conf("tcp-without-an-identity", "listen: { tcp: '127.0.0.1:1' }\n", ":1:16:", r"listen\.tcp: TCP on 127\.0\.0\.1:1", r"needs tls\.cert, tls\.key and tls\.ca, or l"),
    conf("tls-without-a-key", "tls: { cert: a.pem }\n", ":1:14:", "tls: cert, key and ca", "belong together: key is missing"),
    conf("level", "log: { level: wran }\n", ":1:15:", r'log\.level: "wran"', 'did you mean "warn"'),
    conf("format", "log: { format: xml }\n", ":1:16:", r'log\.format: "xml"', "is none of auto, text, json, journal"),
    conf("threads-1025", "engine: { threads: 1025 }\n", ":1:20:", r'engine\.threads: "1025"', r"must be in 0\.\.1024"),
    conf("kernels-empty", "engine: { kernels: '' }\n", ":1:20:", r"engine\.kernels:", "must not be empty"),
    conf("runtime-dir-long", f"runtime_dir: /{'r' * 100}\n", ":1:14:", "runtime_dir: is 101 bytes long", r"must be 1\.\.90"),
    conf("line-break", 'node: { name: "two\\nlines" }\n', ":1:15:", r"node\.name: control characters", "are not allowed: 0x0a at byte 3"),
    setting("no-value", "limits.jobs", "limits.jobs", "is not KEY=VALUE"),
    setting("empty", "", '--set: ""', "is not KEY=VALUE"),
    setting("key-unknown", "limits.job=3", 'unknown key "job" in limits', 'did you mean "jobs"'),
    setting("key-long", "x" * 100 + "=3", "xxx", "is not KEY=VALUE"),
    setting("section", "limits=3", "limits", "must be a mapping of keys"),
    setting("value", "limits.jobs=many", "many", "is not a whole number"),
    setting("value-beyond", "limits.jobs=4294967297", "4294967297", "the most is 4294967295"),
    variable("value", "GACC_LIMITS_JOBS", "-3", "GACC_LIMITS_JOBS: .*-3", "is not a whole number >= 0"),
    variable("level", "GACC_LOG_LEVEL", "loud", "GACC_LOG_LEVEL: .*loud", "is none of error, warn"),
    row("conf-missing", (*CHECK, "/nowhere/gaccd.yaml"), "/nowhere/gaccd.yaml", "No such file"),
    row("conf-a-folder", (*CHECK, "/etc"), "/etc", "Is a directory"),
    row("conf-endless", (*CHECK, "/dev/zero"), "/dev/zero", "Invalid argument"),
    row("job-file-endless", (*VALIDATE, "/dev/zero"), "/dev/zero", "0x00: this is no text"),
    row("job-file-missing", (*VALIDATE, "/nowhere/job.yaml"), "/nowhere/job.yaml", "No such file"),
]
ROWS = JOBS + CONFS
