"""Files: job files (gaccctl config validate) and gaccd's configuration (gaccd --check-config). Each error begins with FILE:LINE:COLUMN, or
names the argument, and says what would be right, often the nearest key."""
from bad_inputs import Row

DEEP = "[" * 20000


def job(what, text, where, value, hint):
    """`text`: the file; lines of its spec begin with two spaces."""
    return Row(f"job-file-{what}", lambda s: s.program("gaccctl", "config", "validate", s.file(text)), "exit 2", "",
               f"input{where}.*{value}", hint)


def conf(what, text, where, value, hint):
    return Row(f"conf-{what}", lambda s: s.program("gaccd", "--check-config", "--config", s.file(text)), "exit 2", "",
               f"input{where}.*{value}", hint)


def setting(what, key_value, value, hint):
    return Row(f"set-{what}", lambda s: s.program("gaccd", "--check-config", "--config", s.file(""), "--set", key_value), "exit 2", "",
               value, hint)


def variable(what, name, text, value, hint):
    return Row(f"env-{what}", lambda s: s.program("gaccd", "--check-config", "--config", s.file(""), **{name: text}), "exit 2", "",
               value, hint)


SGD = "  optimizer: { type: sgd }\n"
JOBS = [
    job("empty", "", "", "", ""),
    job("no-mapping", "- a\n- b\n", ":1:1", "", ""),
    job("scalar", "just text\n", ":1:1", "", ""),
    job("open-brace", "spec: { ranks: 2\n", "", "", ""),
    job("tab", "spec:\n\tranks: 2\n", "", "", ""),
    job("control-character", "spec:\n  ranks: \x01\n", "", "", ""),
    job("not-utf-8", b"spec:\n  ranks: \xff\xfe\n", "", "", ""),
    job("utf-16", "spec:\n  ranks: x\n".encode("utf-16"), "", "", ""),
    job("nul", b"spec:\n  ranks: 2\0\n", "", "", ""),
    job("deep", "spec: " + DEEP, "", "", ""),
    job("long", "spec: {}\n" + "#" * (5 << 20), "", "", ""),
    job("alias-bomb", "a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a]\nspec: [*b,*b,*b,*b]\n", "", "", ""),
    job("anchor-unknown", "spec: *nothing\n", "", "", ""),
    job("two-documents", "spec: {}\n---\nspec: {}\n", "", "", ""),
    job("key-unknown", "spec:\n  rank: 2\n", ":2:3", "", ""),
    job("key-far-from-any", "spec:\n  xyzzy: 2\n", ":2:3", "", ""),
    job("section-unknown", "specs:\n  ranks: 2\n", ":1:1", "", ""),
    job("key-twice", "spec:\n  ranks: 2\n  ranks: 3\n", ":3:3", "", ""),
    job("key-and-its-alias", "spec:\n  micro_size: 2\n  gradient_accumulation_steps: 3\n", ":3:", "", ""),
    job("nested-key-unknown", "spec:\n  optimizer:\n    typ: sgd\n", ":3:5", "", ""),
    job("section-as-scalar", "spec:\n  optimizer: sgd\n", ":2:", "", ""),
    job("scalar-as-section", "spec:\n  ranks: { n: 2 }\n", ":2:", "", ""),
    job("list-as-scalar", "spec:\n  tensors: w\n", ":2:", "", ""),
    job("scalar-as-list", "spec:\n  ranks: [2]\n", ":2:", "", ""),
    job("version", "api_version: gacc/v9\n", ":1:14", "", ""),
    job("kind", "kind: Pod\n", ":1:7", "", ""),
    job("name-long", f"metadata: {{ name: {'n' * 200} }}\n", ":1:", "", ""),
    job("name-with-an-escape", 'metadata: { name: "a\\eb" }\n', ":1:", "", ""),
    job("ranks-0", "spec:\n  ranks: 0\n", ":2:10", "", ""),
    job("ranks-negative", "spec:\n  ranks: -1\n", ":2:10", "", ""),
    job("ranks-fraction", "spec:\n  ranks: 2.5\n", ":2:10", "", ""),
    job("ranks-word", "spec:\n  ranks: two\n", ":2:10", "", ""),
    job("ranks-beyond-32-bits", "spec:\n  ranks: 4294967297\n", ":2:10", "", ""),
    job("steps-beyond-64-bits", "spec:\n  steps: 18446744073709551616\n", ":2:10", "", ""),
    job("hexadecimal", "spec:\n  ranks: 0x10\n", ":2:10", "", ""),
    job("null", "spec:\n  ranks:\n", ":2:", "", ""),
    job("slots-3", "spec:\n  slots_per_rank: 3\n", ":2:19", "", ""),
    job("reduction", "spec:\n  reduction: meen\n", ":2:14", "", ""),
    job("dtype", "spec:\n  accumulate_dtype: f31\n", ":2:21", "", ""),
    job("clip-nan", "spec:\n  clip_norm: .nan\n", ":2:14", "", ""),
    job("clip-word", "spec:\n  clip_norm: nan\n", ":2:14", "", ""),
    job("clip-negative", "spec:\n  clip_norm: -1\n", ":2:14", "", ""),
    job("clip-beyond-a-double", "spec:\n  clip_norm: 1e999\n", ":2:14", "", ""),
    job("optimizer", "spec:\n  optimizer: { type: adm }\n", ":2:", "", ""),
    job("betas-of-one", "spec:\n  optimizer: { type: adam, betas: [0.9] }\n", ":2:", "", ""),
    job("betas-of-three", "spec:\n  optimizer: { type: adam, betas: [0.9, 0.9, 0.9] }\n", ":2:", "", ""),
    job("beta-above-1", "spec:\n  optimizer: { type: adam, betas: [0.9, 2] }\n", ":2:", "", ""),
    job("momentum-of-adam", "spec:\n  optimizer: { type: adam, momentum: 0.9 }\n", ":2:", "", ""),
    job("lr-of-client", "spec:\n  optimizer: { type: client, lr: 0.1 }\n", ":2:", "", ""),
    job("boolean", "spec:\n  optimizer: { type: sgd, nesterov: yes }\n", ":2:", "", ""),
    job("time-without-a-unit", "spec:\n  timeouts: { stall_warn: 10 }\n", ":2:", "", ""),
    job("time-with-a-wrong-unit", "spec:\n  timeouts: { stall_warn: 10 years }\n", ":2:", "", ""),
    job("time-negative", "spec:\n  timeouts: { stall_warn: -1s }\n", ":2:", "", ""),
    job("tensor-without-a-name", "spec:\n" + SGD + "  tensors:\n  - { shape: [2] }\n", ":4:", "", ""),
    job("tensor-shape-0", "spec:\n" + SGD + "  tensors:\n  - { name: w, shape: [0] }\n", ":4:", "", ""),
    job("tensor-shape-word", "spec:\n" + SGD + "  tensors:\n  - { name: w, shape: [two] }\n", ":4:", "", ""),
    job("tensor-dtype", "spec:\n" + SGD + "  tensors:\n  - { name: w, dtype: bf61 }\n", ":4:", "", ""),
    job("init-type", "spec:\n" + SGD + "  init:\n  - { pattern: '*', type: xavier }\n", ":4:", "", ""),
    job("group-key", "spec:\n" + SGD + "  param_groups:\n  - { patern: '*' }\n", ":4:", "", ""),
    job("labels-list", "metadata: { labels: [a, b] }\n", ":1:", "", ""),
]
CONFS = [
    conf("no-mapping", "- a\n", ":1:1", "", ""),
    conf("open-quote", 'log: { level: "info }\n', "", "", ""),
    conf("not-utf-8", b"node: { name: \xff }\n", "", "", ""),
    conf("nul", b"state_dir: a\0b\n", "", "", ""),
    conf("deep", DEEP, "", "", ""),
    conf("long", "#" * (5 << 20), "", "", ""),
    conf("key-unknown", "limits:\n  job: 3\n", ":2:3", "", ""),
    conf("section-unknown", "limit: { jobs: 3 }\n", ":1:1", "", ""),
    conf("section-as-scalar", "limits: 3\n", ":1:", "", ""),
    conf("key-twice", "state_dir: /a\nstate_dir: /b\n", ":2:1", "", ""),
    conf("jobs-0", "limits: { jobs: 0 }\n", ":1:", "", ""),
    conf("jobs-4097", "limits: { jobs: 4097 }\n", ":1:", "", ""),
    conf("jobs-per-user-above-jobs", "limits:\n  jobs: 2\n  jobs_per_user: 3\n", ":3:", "", ""),
    conf("memory-unit", "limits: { host_memory: 64 gigs }\n", ":1:", "", ""),
    conf("memory-negative", "limits: { host_memory: -1GiB }\n", ":1:", "", ""),
    conf("memory-beyond", "limits: { host_memory: 99999999999TiB }\n", ":1:", "", ""),
    conf("mode-decimal", "listen: { mode: 0999 }\n", ":1:", "", ""),
    conf("mode-beyond", "listen: { mode: '77777' }\n", ":1:", "", ""),
    conf("socket-empty", "listen: { socket: '' }\n", ":1:", "", ""),
    conf("socket-long", f"listen: {{ socket: /{'s' * 200} }}\n", ":1:", "", ""),
    conf("tcp-without-a-port", "listen: { tcp: localhost }\n", ":1:", "", ""),
    conf("tcp-without-an-identity", "listen: { tcp: '127.0.0.1:1' }\n", ":1:", "", ""),
    conf("tls-without-a-key", "tls: { cert: a.pem }\n", ":1:", "", ""),
    conf("level", "log: { level: wran }\n", ":1:", "", ""),
    conf("format", "log: { format: xml }\n", ":1:", "", ""),
    conf("threads-1025", "engine: { threads: 1025 }\n", ":1:", "", ""),
    conf("kernels-empty", "engine: { kernels: '' }\n", ":1:", "", ""),
    conf("runtime-dir-long", f"runtime_dir: /{'r' * 100}\n", ":1:", "", ""),
    conf("line-break", 'node: { name: "two\\nlines" }\n', ":1:", "", ""),
    setting("no-value", "limits.jobs", "limits.jobs", ""),
    setting("empty", "", "", ""),
    setting("key-unknown", "limits.job=3", "limits.job", ""),
    setting("key-long", "x" * 100 + "=3", "xxx", ""),
    setting("section", "limits=3", "limits", ""),
    setting("value", "limits.jobs=many", "many", ""),
    setting("value-beyond", "limits.jobs=4294967297", "4294967297", ""),
    variable("value", "GACC_LIMITS_JOBS", "-3", "-3", ""),
    variable("level", "GACC_LOG_LEVEL", "loud", "loud", ""),
    Row("conf-missing", lambda s: s.program("gaccd", "--check-config", "--config", "/nowhere/gaccd.yaml"), r"exit [12]", "", "/nowhere/gaccd.yaml", ""),
    Row("conf-a-folder", lambda s: s.program("gaccd", "--check-config", "--config", s.daemon.dir), r"exit [12]", "", "gacc-", ""),
    Row("conf-endless", lambda s: s.program("gaccd", "--check-config", "--config", "/dev/zero"), r"exit [12]", "", "/dev/zero", ""),
    Row("job-file-endless", lambda s: s.program("gaccctl", "config", "validate", "/dev/zero"), r"exit [12]", "", "/dev/zero", ""),
    Row("job-file-missing", lambda s: s.program("gaccctl", "config", "validate", "/nowhere/job.yaml"), r"exit [12]", "", "/nowhere/job.yaml", ""),
]
ROWS = JOBS + CONFS
