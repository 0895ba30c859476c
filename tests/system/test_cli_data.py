# SPDX-License-Identifier: Apache-2.0
"""What gaccctl prints for programs: JSON, YAML, the job file's schema, proposals of completion."""
import json
import os
import re
import subprocess

import jsonschema
import pytest
import yaml

from cli import EXAMPLES, GACCCTL, SGD, cluster, json_names  # noqa: F401 (a fixture)
from harness import Client, wait_until

# ---- formats ----


def test_json_has_the_names_of_the_proto(cluster):
    types = Client(cluster.endpoint).types
    job = cluster.submit(name="named")
    one = cluster.json("describe", f"job/{job}")
    assert set(one) == json_names(types.Job.DESCRIPTOR) and set(one["spec"]) == json_names(types.JobSpec.DESCRIPTOR)
    assert set(cluster.json("describe", "node")) == json_names(types.GetNodeResponse.DESCRIPTOR)
    assert set(one["ranks"][0]) == json_names(types.RankStatus.DESCRIPTOR)
    lines = cluster.run("jobs", "-o", "jsonl").splitlines()
    assert job in [json.loads(x)["id"] for x in lines]
    assert f"job/{job}" in cluster.run("jobs", "-o", "name").splitlines()
    cluster.run("cancel", job)


def test_yaml_is_the_same_as_json(cluster):
    class Words(yaml.SafeLoader):
        """Times stay strings."""
        yaml_implicit_resolvers = {k: [r for r in v if r[0] != "tag:yaml.org,2002:timestamp"]
                                   for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()}

    job = cluster.submit("--set", "metadata.labels={a: 'yes', b: '12', c: ''}", name="y")
    cluster.run("cancel", job)
    wait_until("its end", lambda: cluster.state(job) == "CANCELLED")
    assert yaml.load(cluster.run("describe", f"job/{job}", "-o", "yaml"), Words) == cluster.json("describe", f"job/{job}")


def test_errors_as_data(cluster):
    error = cluster.json("describe", "job/4711", code=4)["error"]
    assert error["code"] == "NOT_FOUND" and error["reason"] == "JOB_NOT_FOUND" and error["message"] and error["hint"]
    text = cluster.run("describe", "job/4711", "-o", "yaml", code=4)
    assert text.startswith("error:\n  code: NOT_FOUND\n")


@pytest.mark.parametrize("format", ["table", "json"])
def test_an_answer_that_cannot_be_written(cluster, format):
    with open("/dev/full", "w") as full:
        done = subprocess.run([GACCCTL, "config", "show", "-o", format], env=cluster.env, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr == "error: the answer could not be written\n"
    with subprocess.Popen([GACCCTL, "config", "show", "-o", format], env=cluster.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as head:
        head.stdout.close()
        assert head.stderr.read() == ""  # who has read enough needs no explanation


# ---- the job file's schema ----


def test_schema_takes_what_gaccctl_takes(cluster):
    schema = json.loads(cluster.run("config", "schema"))
    assert schema["$schema"].startswith("https://json-schema.org/") and schema == cluster.json("config", "schema")
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    files = [p.read_text() for p in EXAMPLES.glob("*.yaml")]
    files += ["spec: {ranks: 4, timeouts: {stall_warn: 60s}, optimizer: {type: adam, betas: [0.9, 0.99]}, deterministic: true}",
              "spec: {optimizer: {type: client}, tensors: [{name: w, shape: [2, 3]}], param_groups: [{pattern: '*', frozen: true}]}"]
    bad = ["spec: {rank: 4}", "spec: {ranks: 0}", "spec: {ranks: 1.5}", "spec: {timeouts: {stall_warn: 60}}",
           "spec: {reduction: median}", "spec: {optimizer: {betas: [0.9]}}", "spec: {tensors: [{shape: [0], name: w}]}"]
    for text in files + bad:
        valid = text not in bad
        cluster.run("submit", "-f", "-", "--dry-run", *([] if valid else SGD), stdin=text, code=0 if valid else 2)
        assert validator.is_valid(yaml.safe_load(text)) == valid, text


# ---- completion ----


# what a shell does with a completion script and the words of a command line; it prints a line for each proposal
SHELLS = {
    "bash": ("source <(gaccctl completion bash); COMP_WORDS=(gaccctl \"$@\"); COMP_CWORD=$#; _gaccctl; "
             "printf '%s\\n' \"${COMPREPLY[@]}\""),
    # as compinit finds it where it is installed; its own widgets only work in an interactive shell
    "zsh": ("gaccctl completion zsh > $TMPDIR/_gaccctl; fpath=($TMPDIR $fpath); autoload -Uz compinit; compinit -u -D; "
            "(( $+_comps[gaccctl] )) || exit 1; proposals() { local of=${@[-1]}; print -rl -- \"${(@P)of%%:*}\" }; "
            "_describe() { proposals \"$@\" }; compadd() { proposals \"$@\" }; "
            "words=(gaccctl \"$@\"); CURRENT=$#words; PREFIX=$words[-1]; $_comps[gaccctl]"),
    "fish": "gaccctl completion fish | source; complete -C \"gaccctl $argv\" | string replace -r '\\t.*' ''",
}


@pytest.mark.parametrize("words, expected", [
    (["che"], ["checkpoint"]), (["checkpoint", ""], ["save", "list", "restore"]), (["cluster", "d"], ["down"]),
    (["bench", "--pa"], ["--path"]), (["wait", "job/"], None)])
@pytest.mark.parametrize("shell", SHELLS)
def test_completion(cluster, shell, words, expected):
    if expected is None:
        job = cluster.submit(name="completed")
        cluster.run("cancel", job)
        expected = [f"job/{job}"]
    command = [shell, "-c", SHELLS[shell], *[shell] * (shell != "fish"), *words]
    env = {**cluster.env, "HOME": str(cluster.folder), "PATH": f"{GACCCTL.parent}:{os.environ['PATH']}"}
    out = subprocess.run(command, env=env, text=True, capture_output=True, timeout=20)
    assert set(expected) <= set(out.stdout.split()) and not out.stderr, out
