# SPDX-License-Identifier: Apache-2.0
"""gaccctl health on a machine with GPUs: the fake NVML (tests/gpu) is the driver, and a tmpfs over /dev, in mount namespaces of gaccd's or gaccctl's, has
its nodes. tests/unit/client/test_gpus.c has each fault; these are rows, JSON and exit statuses, between a real gaccd and gaccctl."""
import json
import os
import re
import subprocess

import pytest

from cli import json_names
from harness import Daemon, build_dir, free_port

GACCCTL = build_dir() / "bin/gaccctl"
FAKE, OLD = "lib/fake_cuda", "lib/fake_nvml_old"
UNSHARE = ["unshare", "--mount", "--propagation", "private", *([] if os.geteuid() == 0 else ["--map-root-user"])]
NODES = ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"]
# What programs need of the real /dev, and beside it plain files as the driver's nodes.
WITH_NODES = ["sh", "-c", f"""
mkdir -p "$0/olddev" "$0/newdev" && mount --rbind /dev "$0/olddev" && mount -t tmpfs -o mode=755 tmpfs "$0/newdev" || exit 77
for d in null zero full random urandom; do touch "$0/newdev/$d" && mount --bind "$0/olddev/$d" "$0/newdev/$d" || exit 77; done
mkdir "$0/newdev/shm" && mount --bind "$0/olddev/shm" "$0/newdev/shm" || exit 77
for d in {" ".join(NODES)}; do touch "$0/newdev/$d"; done
mount --rbind "$0/newdev" /dev || exit 77
exec "$@" """]


def in_namespace(folder, command):
    return [*UNSHARE, *WITH_NODES, str(folder), *command]


@pytest.fixture(scope="module", autouse=True)
def may_mount(tmp_path_factory):
    done = subprocess.run(in_namespace(tmp_path_factory.mktemp("dev"), ["test", "-e", "/dev/nvidia0"]), capture_output=True)
    if done.returncode:
        pytest.skip("mounts are not allowed here")


class WithNodes(Daemon):
    """gaccd in a mount namespace that has the driver's nodes."""

    def command(self):
        return in_namespace(self.dir, ["prlimit", "--memlock=8388608:", *super().command()])


def run(d, *words, library=FAKE, nodes=True, code=0, **env):
    """gaccctl health; what it printed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GACC_", "FAKE_CUDA", "CUDA_"))}
    command = [GACCCTL, "health", "--endpoint", d.endpoint, *words]
    libraries = {"LD_LIBRARY_PATH": str(build_dir() / library)} if library else {}
    done = subprocess.run(in_namespace(d.dir, command) if nodes else command, capture_output=True, text=True, timeout=60,
                          env={**clean, **libraries, "FAKE_CUDA_PERSISTENCE": "1", "CUDA_MPS_PIPE_DIRECTORY": str(d.dir), **env})
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def rows(text):
    """Of the table beneath gaccd's line: {"driver": ("ok", rest), ..}."""
    first, *table = text.splitlines()
    assert first.startswith("ok: gaccd")
    found = {}
    for line in table[1:]:
        name, state, rest = re.match(r"(compute mode|\S+) +(ok|note|fault) +(.*)", line).groups()
        assert name not in found
        found[name] = (state, rest)
    assert not table or table[0].split() == ["CHECK", "STATE", "OF", "FOUND", "FIX"]
    return found


def test_no_row_without_a_gpu():
    with Daemon() as d:
        for words in ((), ("--gpus",)):
            text = run(d, *words, library=None, nodes=False)
            assert text.startswith("ok: gaccd")
            expected = ["no GPU here: NVIDIA's management library is not here: libnvidia-ml.so.1 is not found"] if words else []
            assert text.splitlines()[1:] == expected
            assert json.loads(run(d, *words, "-o", "json", library=None, nodes=False))["gpu_checks"] == []
        # a library without a driver, as images for CUDA have it; one that is too old
        assert "no GPU here: NVIDIA's driver does not start (NVML error 9)" in run(d, "--gpus", nodes=False, FAKE_CUDA_NVML_INIT="9")
        assert "no GPU here: NVIDIA's management library here has no nvml" in run(d, "--gpus", nodes=False, library=OLD)


def test_gaccd_sees_no_nodes():
    """As in a unit without the drop-in. Without --gpus a fault is shown and changes no exit status."""
    with Daemon() as d:
        fault = rows(run(d, "--gpus", code=8))["nodes"]
        assert fault[0] == "fault" and " ".join(NODES) in fault[1] and "hidden from gaccd" in fault[1] and "install gaccd-gpu.conf" in fault[1]
        shown = rows(run(d))
        assert shown["nodes"] == fault and "driver" not in shown and "compute mode" not in shown


def test_rows_and_json():
    with WithNodes() as d:
        node = d.client.node.GetNode()
        assert [(n.path, n.error) for n in node.device_access.nodes] == [(f"/dev/{n}", "") for n in NODES]
        assert node.device_access.memlock_limit == 8 << 20
        found = rows(run(d, "--gpus", code=8))
        assert {name: state for name, (state, _) in found.items()} == {"driver": "ok", "memlock": "fault", "nodes": "ok", "compute mode": "ok",
                                                                       "persistence": "ok", "MPS": "ok"}
        assert "8.00 MiB for gaccd" in found["memlock"][1] and "LimitMEMLOCK=infinity" in found["memlock"][1]
        data = json.loads(run(d, "--gpus", "-o", "json", code=8, FAKE_CUDA_MPS="2"))
        checks = data.pop("gpu_checks")
        assert set(data) == json_names(type(node).DESCRIPTOR)
        assert [set(c) for c in checks] == [{"check", "state", "of", "found", "fix"}] * 6
        by_name = {c["check"]: c for c in checks}
        assert by_name["driver"] == {"check": "driver", "state": "ok", "of": "", "found": "580.00.00, 2 GPUs", "fix": ""}
        assert by_name["nodes"]["of"] == " ".join(NODES)
        assert by_name["MPS"]["state"] == "note" and by_name["MPS"]["found"] == "on, 2 clients" and by_name["MPS"]["of"] == "0 1"
        assert [c["check"] for c in json.loads(run(d, "-o", "json"))["gpu_checks"]] == ["driver", "memlock", "nodes"]


def test_faults_decide_the_exit_status():
    with WithNodes() as d:
        subprocess.run(["prlimit", f"--pid={d.pid}", "--memlock=unlimited:"], check=False)
        node = d.client.node.GetNode()
        well = 0 if node.device_access.memlock_limit == 2 ** 64 - 1 else 8  # only root may raise it
        run(d, "--gpus", code=well)
        run(d, "--gpus", code=well, FAKE_CUDA_MPS="1")  # allowed
        for env, name, fix in (({"FAKE_CUDA_PERSISTENCE": "0"}, "persistence", "nvidia-persistenced"),
                               ({"FAKE_CUDA_ATTRIBUTES": "20=3"}, "compute mode", "nvidia-smi -c DEFAULT"),
                               ({"FAKE_CUDA_NVML_LOST": "1"}, "GPU", "nvidia-smi -r"),
                               ({"FAKE_CUDA_NVML_INIT": "9"}, "driver", "modprobe nvidia")):
            state, text = rows(run(d, "--gpus", code=8, **env))[name]
            assert state == "fault" and fix in text
            run(d, code=0, **env)
        for library, found in ((OLD, "too old"), (None, "libnvidia-ml.so.1 is not found")):
            assert found in rows(run(d, "--gpus", code=8, library=library))["driver"][1]
            assert found in rows(run(d, library=library))["driver"][1]


@pytest.mark.parametrize("endpoint, code, words", [("localhost:1", 2, "gaccd is on another"), ("dns:///localhost:1", 2, "gaccd is on another"),
                                                   ("/nowhere/g.sock", 3, "/nowhere/g.sock"), ("unix:/nowhere/g.sock", 3, "/nowhere/g.sock")])
def test_only_on_this_machine(endpoint, code, words):
    for how in ({"args": ["--endpoint", endpoint], "env": os.environ}, {"args": [], "env": {**os.environ, "GACC_ENDPOINT": endpoint}}):
        done = subprocess.run([GACCCTL, "health", "--gpus", *how["args"]], env=how["env"], capture_output=True, text=True)
        assert done.returncode == code and words in done.stderr


def test_a_gaccd_elsewhere_is_not_judged_by_gpus_here(tmp_path):
    token = tmp_path / "token"
    token.write_text("x" * 32)
    token.chmod(0o600)
    address = f"127.0.0.1:{free_port()}"
    with WithNodes(conf={"listen.tcp": address, "listen.token_file": token}) as d:
        assert len(run(d).splitlines()) > 1
        elsewhere = {"GACC_TOKEN_FILE": str(token), "FAKE_CUDA_NVML_INIT": "9"}
        assert len(run(d, "--endpoint", address, **elsewhere).splitlines()) == 1
        assert "gpu_checks" not in json.loads(run(d, "--endpoint", address, "-o", "json", **elsewhere))
