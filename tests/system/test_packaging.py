# SPDX-License-Identifier: Apache-2.0
"""What is installed: the unit and what it demands of gaccd, the tree of `cmake --install`, the Debian packages. systemd itself is
not run: its file is checked by systemd-analyze, its sandbox rebuilt (sandbox.py), its descriptor store played by --supervise."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from harness import Client, Daemon, Rank, build_dir, free_port
from sandbox import Unit, allowed_calls

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy/systemd/gaccd.service"
VERSION = re.search(r"project\(gacc VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
MAX_EXPOSURE = 2.0

systemd_analyze = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze (package systemd)")
may_unshare = os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"]).returncode == 0
as_root = pytest.mark.skipif(not may_unshare, reason="needs root and the right to unshare")


def run(*command, **how):
    """Its output; fails with all of it."""
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, **how)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-6000:]}"
    return done.stdout


# ---- the unit ----


@pytest.mark.parametrize("name, value", [
    ("Type", "notify"), ("ExecStart", "/usr/sbin/gaccd"), ("User", "gacc"), ("Group", "gacc"), ("UMask", "0077"),
    ("Restart", "always"), ("RestartPreventExitStatus", "2"), ("StartLimitIntervalSec", "0"), ("WatchdogSec", "30"),
    ("KillMode", "process"), ("FileDescriptorStoreMax", "4096"),
    ("StateDirectory", "gaccd"), ("StateDirectoryMode", "0711"), ("RuntimeDirectory", "gaccd"), ("RuntimeDirectoryMode", "0755"),
    ("LimitMEMLOCK", "infinity"), ("LimitNOFILE", "1024:131072"), ("LimitCORE", "0"), ("CapabilityBoundingSet", ""),
    ("NoNewPrivileges", "yes"), ("ProtectSystem", "strict"), ("MemoryDenyWriteExecute", "yes"),
    ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"), ("WantedBy", "multi-user.target"),
])
def test_unit_says(name, value):
    assert Unit(UNIT)[name] == value


@pytest.mark.parametrize("name, harmless", [("ProtectProc", "default"), ("ProcSubset", "all"), ("PrivateUsers", "no")])
def test_unit_lets_gaccd_see_trainers(name, harmless):
    """With these, a living trainer of another user would look dead, and its slots would go to somebody else."""
    assert set(Unit(UNIT).all(name)) <= {harmless}


def test_unit_keeps_as_many_descriptors_as_supervise():
    header = (ROOT / "daemon/host/supervise.h").read_text()
    assert Unit(UNIT)["FileDescriptorStoreMax"] == re.search(r"SUPERVISE_MAX_FDS (\d+)", header)[1]
    assert Unit(UNIT)["Environment"] == "FDSTORE=" + Unit(UNIT)["FileDescriptorStoreMax"]


@systemd_analyze
def test_unit_filter():
    allowed = allowed_calls(Unit(UNIT))
    assert {"memfd_create", "pidfd_open", "chown", "fallocate", "flock", "mbind", "sched_setaffinity"} <= allowed
    assert not {"mount", "ptrace", "bpf", "setuid", "init_module", "chroot", "open_by_handle_at"} & allowed


@systemd_analyze
def test_unit_verifies(installed, tmp_path):
    text = installed.find("*/systemd/system/gaccd.service").read_text()
    program = re.search("^ExecStart=(.*)", text, re.M)[1]
    assert installed.root / program.lstrip("/") == installed.find("*/sbin/gaccd")
    unit = tmp_path / "gaccd.service"
    unit.write_text(text.replace(program, str(installed.root) + program))
    assert run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit) == ""


@systemd_analyze
def test_drop_in_for_gpus_verifies(installed, tmp_path):
    """With a name that is wrong, systemd would start gaccd without the line."""
    drop_in = installed.find("doc/gaccd/examples/gaccd-gpu.conf").read_text()
    unit, folder = tmp_path / "gaccd.service", tmp_path / "gaccd.service.d"
    folder.mkdir()
    unit.write_text(re.sub("^ExecStart=.*", f"ExecStart={installed.find('*/sbin/gaccd')}", UNIT.read_text(), flags=re.M))
    (folder / "gpu.conf").write_text(drop_in)
    assert run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit) == ""
    (folder / "gpu.conf").write_text(drop_in.replace("DeviceAllow=/dev/nvidiactl", "DeviceAlow=/dev/nvidiactl"))
    with pytest.raises(AssertionError, match="gpu.conf:.*DeviceAlow"):  # it is read
        run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit)


def test_drop_in_for_gpus_allows_the_drivers_nodes_alone():
    told = Unit(ROOT / "deploy/systemd/gaccd-gpu.conf")
    nodes = {"char-nvidia*", "/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{n}" for n in range(10))}
    assert set(told.all("DeviceAllow")) == {f"{n} rw" for n in nodes}
    assert (told["PrivateDevices"], told["DevicePolicy"]) == ("no", "closed")
    assert told["Wants"] == told["After"] == "nvidia-persistenced.service"


@systemd_analyze
def test_unit_exposure():
    said = run("systemd-analyze", "security", "--offline=true", "--no-pager", UNIT)
    assert float(re.search(r"exposure level for gaccd.service: ([0-9.]+)", said)[1]) <= MAX_EXPOSURE, said


class SandboxedDaemon(Daemon):
    def command(self):
        return [sys.executable, ROOT / "tests/system/sandbox.py", UNIT, self.dir, *super().command()]


@systemd_analyze
@as_root
def test_job_under_the_units_rules(tmp_path):
    """Memory, engine, TCP, a checkpoint and the descriptor store under the unit's rules, over a SIGKILL of gaccd."""
    token, port = tmp_path / "token", free_port()
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    conf = {"listen.group": "root", "listen.tcp": f"127.0.0.1:{port}", "listen.token_file": token}
    with SandboxedDaemon(supervise=True, conf=conf) as d:
        status = pathlib.Path(f"/proc/{d.pid}/status").read_text()
        for line in "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2":
            assert line in status
        job = d.submit({"ranks": 1, "micro_size": 2, "optimizer": {"type": "sgd", "lr": 0.5}})
        with Rank(d, job, 0, [("w", [1000])]) as r:
            r.start({"w": np.ones(1000, np.float32)})
            r.push([np.ones(1000, np.float32)])
            d.kill_gaccd()
            r.push([np.full(1000, 3, np.float32)])
            r.wait_step()
            np.testing.assert_array_equal(r.params()["w"], 0)
            saved = d.client.jobs.SaveCheckpoint(job=str(job), wait=True, request_id=os.urandom(16)).checkpoint
            assert saved.applied_step == 1 and (pathlib.Path(saved.path) / "manifest.json").exists(), saved
        over_tcp = Client(f"127.0.0.1:{port}", metadata=[("authorization", "Bearer 0123456789abcdef")])
        assert over_tcp.node.GetNode().version == VERSION
        over_tcp.close()


# ---- cmake --install ----


class Tree:
    def __init__(self, root):
        self.root = root

    def find(self, pattern):
        found = [p for p in self.root.rglob("*") if p.match(pattern)]
        assert len(found) == 1, f"{pattern}: {found}"
        return found[0]


def prefix():
    cache = (build_dir() / "CMakeCache.txt").read_text()
    return pathlib.Path(re.search("^CMAKE_INSTALL_PREFIX:PATH=(.*)", cache, re.M)[1])


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    tree = Tree(tmp_path_factory.mktemp("tree"))
    run("cmake", "--install", build_dir(), env={**os.environ, "DESTDIR": str(tree.root)})
    return tree


def test_installed_files(installed):
    for pattern in ("etc/gacc/gaccd.yaml", "sbin/gaccd", "bin/gaccctl", "libgacc.so", "libgacc.so.0", f"libgacc.so.{VERSION}",
                    "include/gacc/gacc.h", "include/gacc/gacc_admin.h", "include/gacc/gacc_cuda.h", "include/gacc/mailbox.h", "pkgconfig/gacc.pc", "cmake/gacc/gaccConfig.cmake",
                    "gacc/gacc.protoset", "gacc/proto/gacc/v1/gradient.proto", "lib/systemd/system/gaccd.service",
                    "lib/sysusers.d/gacc.conf", "man1/gaccctl.1", "man8/gaccd.8", "bash-completion/completions/gaccctl",
                    "site-functions/_gaccctl", "vendor_completions.d/gaccctl.fish", "gacc/job.schema.json"):
        installed.find(pattern)
    if (build_dir() / "lib/gacc_cuda.fatbin").exists():
        plugin = installed.find("lib/gacc/gacc_cuda.so")
        assert (installed.find("sbin/gaccd").parent / "../lib/gacc/gacc_cuda.so").resolve() == plugin


def test_installed_gaccd_runs(installed):
    class InstalledDaemon(Daemon):
        def command(self):
            return [installed.find("sbin/gaccd"), *super().command()[1:]]

    env = dict(os.environ)
    if prefix() == pathlib.Path("/usr"):  # where the loader finds the library
        env["LD_LIBRARY_PATH"] = str(installed.find("libgacc.so.0").parent)
    with InstalledDaemon() as d:
        run(installed.find("bin/gaccctl"), "--endpoint", d.endpoint, "health", env=env)
        job = d.submit({"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1.0}})
        with Rank(d, job, 0, [("w", [10])]) as r:
            r.start({"w": np.ones(10, np.float32)})
            r.push([np.ones(10, np.float32)])
            r.wait_step()
            np.testing.assert_array_equal(r.params()["w"], 0)


def test_installed_library_builds_a_program(installed, tmp_path):
    """pkg-config, headers, library: as somebody else's program."""
    (tmp_path / "p.c").write_text("#include <gacc/gacc.h>\n#include <gacc/gacc_admin.h>\n#include <gacc/mailbox.h>\n"
                                  "int main(void) { return !*gacc_version(); }\n")
    env = {**os.environ, "PKG_CONFIG_SYSROOT_DIR": str(installed.root),
           "PKG_CONFIG_PATH": str(installed.find("pkgconfig/gacc.pc").parent), "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1",
           "PKG_CONFIG_ALLOW_SYSTEM_LIBS": "1"}
    flags = run("pkg-config", "--cflags", "--libs", "gacc", env=env).split()
    run("cc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", tmp_path / "p.c", "-o", tmp_path / "p", *flags)
    run(tmp_path / "p", env={**os.environ, "LD_LIBRARY_PATH": str(installed.find("libgacc.so.0").parent)})


@pytest.mark.parametrize("where,config", [("/usr", "etc/gacc/gaccd.yaml"), ("/opt/gacc", "opt/gacc/etc/gacc/gaccd.yaml")])
def test_the_configuration_follows_the_prefix_and_keeps_changes(tmp_path, where, config):
    config = tmp_path / config
    for text in (None, "limits:\n  jobs: 16\n"):
        if text:
            config.write_text(text)
        run("cmake", "--install", build_dir(), "--component", "gaccd", "--prefix", where,
            env={**os.environ, "DESTDIR": str(tmp_path)})
        assert [p for p in tmp_path.rglob("gaccd.yaml")] == [config]
        assert config.read_text() == (text or (ROOT / "deploy/gaccd.yaml").read_text())


# ---- texts that must agree with the program ----


def print_config(file):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GACC_")}
    return run(build_dir() / "bin/gaccd", "--config", file, "--print-config", env=env)


def test_sample_configuration_is_the_defaults(tmp_path):
    """Each key with its documentation and its default; with all of them set, nothing is different."""
    sample = (ROOT / "deploy/gaccd.yaml").read_text()
    as_set = re.sub(r"^( *)#([a-z_]+: )", r"\1\2", sample, flags=re.M)
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "set.yaml").write_text(as_set)

    def without_origin(text):
        return [re.sub("  # .*", "", line) if not line.lstrip().startswith("#") else line for line in text.splitlines()]

    defaults = without_origin(print_config(tmp_path / "empty.yaml"))
    assert without_origin(print_config(tmp_path / "set.yaml")) == defaults
    assert without_origin(print_config(ROOT / "deploy/gaccd.yaml")) == defaults

    def keys_and_docs(lines):
        return [line if line.lstrip().startswith("#") else line.split(":")[0] for line in lines]

    header, body = as_set.split("\n\n", 1)
    assert all(line.startswith("#") for line in header.splitlines())
    assert keys_and_docs(body.splitlines()) == keys_and_docs(defaults)


def test_manual_page_knows_every_option():
    page = (ROOT / "deploy/man/gaccd.8").read_text().replace("\\-", "-")
    usage = run(build_dir() / "bin/gaccd", "--help")
    options = re.findall(r"^  (?:    |-\w, )(--[a-z-]+)", usage, re.M)
    assert len(options) >= 7 and all(o in page for o in options)
    assert re.search("^Exit codes: (.*)", usage, re.M)[1] in page


# ---- Debian packages ----

PACKAGES = {
    "gaccd": {"/etc/gacc/gaccd.yaml", "/usr/sbin/gaccd", "/usr/lib/systemd/system/gaccd.service", "/usr/lib/sysusers.d/gacc.conf",
              "/usr/share/man/man8/gaccd.8.gz",
              "/usr/share/doc/gaccd/examples/gaccd-launch.conf", "/usr/share/doc/gaccd/examples/gaccd-gpu.conf"},
    "gacc-tools": {"/usr/bin/gaccctl", "/usr/share/man/man1/gaccctl.1.gz", "/usr/share/bash-completion/completions/gaccctl",
                   "/usr/share/zsh/site-functions/_gaccctl", "/usr/share/fish/vendor_completions.d/gaccctl.fish",
                   "/usr/share/gacc/job.schema.json", "/usr/share/gacc/make-certs.sh"},
    "libgacc0": {"/usr/lib/*/libgacc.so.0", f"/usr/lib/*/libgacc.so.{VERSION}", "/usr/share/lintian/overrides/libgacc0"},
    "libgacc-dev": {"/usr/include/gacc/gacc.h", "/usr/include/gacc/gacc_admin.h", "/usr/include/gacc/gacc_cuda.h", "/usr/include/gacc/mailbox.h", "/usr/lib/*/libgacc.so",
                    "/usr/lib/*/pkgconfig/gacc.pc", "/usr/lib/*/cmake/gacc/gaccConfig.cmake",
                    "/usr/lib/*/cmake/gacc/gaccConfigVersion.cmake", "/usr/lib/*/cmake/gacc/gaccTargets.cmake",
                    "/usr/lib/*/cmake/gacc/gaccTargets-relwithdebinfo.cmake", "/usr/share/gacc/gacc.protoset",
                    *(f"/usr/share/gacc/proto/gacc/v1/{p.name}" for p in (ROOT / "proto/gacc/v1").glob("*.proto"))},
}


@pytest.fixture(scope="module")
def debs(tmp_path_factory):
    """Package's name -> file, from a build of their own."""
    if not shutil.which("dpkg-deb") or not shutil.which("dpkg-shlibdeps"):
        pytest.skip("no dpkg-deb or dpkg-shlibdeps")
    if re.search("^GACC_SANITIZE:STRING=.", (build_dir() / "CMakeCache.txt").read_text(), re.M):
        pytest.skip("packages are built without a sanitizer, once in each test run")
    build = tmp_path_factory.mktemp("packages")
    run(ROOT / "deploy/build-packages.sh", build)
    if (build / "lib/gacc_cuda.fatbin").exists():  # there is nvcc
        PACKAGES["gaccd-cuda"] = {"/usr/lib/gacc/gacc_cuda.so", "/usr/share/lintian/overrides/gaccd-cuda"}
    files = sorted((build / "packages").glob("*.deb"))
    yield {f.name.split("_")[0]: f for f in files}
    shutil.rmtree(build)


@pytest.mark.campaign
def test_packages_hold_what_they_should(debs):
    assert set(debs) == set(PACKAGES)
    for name, expected in PACKAGES.items():
        listed = [re.sub("/usr/lib/[a-z0-9_]+-linux-[a-z]+/", "/usr/lib/*/", line.split()[5].removeprefix("."))
                  for line in run("dpkg-deb", "-c", debs[name]).splitlines() if not line.startswith("d")]
        docs = {f"/usr/share/doc/{name}/copyright", f"/usr/share/doc/{name}/changelog.gz"}
        assert set(listed) == expected | docs and len(listed) == len(expected | docs), name
        assert run("dpkg-deb", "-f", debs[name], "Version").strip() == VERSION
        owners = {line.split()[1] for line in run("dpkg-deb", "-c", debs[name]).splitlines()}
        assert owners == {"root/root"}


@pytest.mark.campaign
def test_packages_control(debs):
    def depends(name):
        return {d.split()[0]: d for d in run("dpkg-deb", "-f", debs[name], "Depends").strip().split(", ")}

    assert {"adduser", "libc6", "libsqlite3-0", "libuv1", "libprotobuf-c1"} <= set(depends("gaccd"))
    if "gaccd-cuda" in debs:
        assert depends("gaccd-cuda")["gaccd"] == f"gaccd (= {VERSION})"
    for name in "gacc-tools", "libgacc-dev":
        assert depends(name)["libgacc0"] == f"libgacc0 (= {VERSION})"
    assert run("dpkg-deb", "-I", debs["gaccd"], "conffiles") == "/etc/gacc/gaccd.yaml\n"
    assert run("dpkg-deb", "-I", debs["libgacc0"], "shlibs") == f"libgacc 0 libgacc0 (= {VERSION})\n"
    changelog = (ROOT / "deploy/debian/changelog").read_text()
    assert changelog.startswith(f"gacc ({VERSION}) ")


@pytest.mark.campaign
def test_packages_name_no_build_folder(debs, tmp_path):
    for deb in debs.values():
        run("dpkg-deb", "-x", deb, tmp_path)
    folder = str(debs["gaccd"].parent.parent).encode()
    for file in tmp_path.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert folder not in data and str(ROOT).encode() not in data, file


@pytest.mark.campaign
@pytest.mark.skipif(not shutil.which("lintian"), reason="no lintian (package lintian)")
def test_packages_satisfy_lintian(debs, tmp_path):
    said = run("lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", *debs.values(),
               env={**os.environ, "TMPDIR": str(tmp_path)})  # it leaves files there
    assert said == ""


class Chroot:
    def __init__(self, root):
        self.root = root

    def __call__(self, *command):
        """Runs it inside, with a /proc, and none of its processes outlives it."""
        return run("unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={self.root}/proc", "chroot", self.root,
                   *command, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"})

    def apt(self, *arguments):
        return self("apt-get", "-q", "-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", *arguments)

    def traces(self):
        """Files that have to do with us, logs and dpkg's own left out."""
        return self("sh", "-c", "find /etc /usr /var/lib /run -xdev -name '*gacc*' | grep -v ^/var/lib/dpkg/ || true").split()


@pytest.fixture
def chroot(tmp_path):
    """A minimal system of this Debian, without systemd."""
    if os.environ.get("OFFLINE") == "1" or not shutil.which("debootstrap"):
        pytest.skip("OFFLINE=1" if os.environ.get("OFFLINE") == "1" else "no debootstrap (package debootstrap)")
    release = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
    if release.get("ID") != "debian":
        pytest.skip("not on Debian")
    done = subprocess.run(["debootstrap", "--variant=minbase", release["VERSION_CODENAME"], tmp_path / "root"], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if re.search("Failed getting release file|Couldn't download|noexec or nodev", done.stdout):
        pytest.skip("no network, or no devices in this folder: " + done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout[-3000:]
    yield Chroot(tmp_path / "root")
    shutil.rmtree(tmp_path / "root")


@pytest.mark.parametrize("saved", [True, False])
def test_purge_keeps_checkpoints_and_says_so(tmp_path, saved):
    """The package's own script, with another directory in the place of /var/lib/gaccd."""
    state = tmp_path / "gaccd"
    (state / "logs/1").mkdir(parents=True)
    (state / "checkpoints/1").mkdir(parents=True)
    for name in ("journal.sqlite", "history.db", "logs/1/worker_0.log"):
        (state / name).write_text("x")
    if saved:
        (state / "checkpoints/1/manifest.json").write_text("{}")
    script = (ROOT / "deploy/debian/gaccd.postrm").read_text().replace("/var/lib/gaccd", str(state)).replace("deb-systemd-helper", "none")
    done = subprocess.run(["sh", "-c", script, "postrm", "purge"], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert [str(f.relative_to(state)) for f in state.rglob("*") if f.is_file()] == (["checkpoints/1/manifest.json"] if saved else [])
    assert state.exists() == saved
    assert (f"checkpoints are kept in {state}/checkpoints" in done.stderr) == saved


SESSION = """
set -e
test "$(id -gn gacc)" = gacc
install -d -o gacc -g gacc /run/gaccd
install -d -o gacc -g gacc -m 700 /var/lib/gaccd
setpriv --reuid gacc --regid gacc --clear-groups gaccd --supervise >/tmp/log 2>&1 &
for i in $(seq 100); do gaccctl health >/dev/null 2>&1 && break; sleep 0.1; done
gaccctl health || { cat /tmp/log; exit 1; }
stat -c '%U:%G %a' /run/gaccd/gaccd.sock
kill $!
wait $!
rm -r /run/gaccd # systemd would
"""


@pytest.mark.campaign
@as_root
def test_packages_install_run_and_go(debs, chroot):
    wants = chroot.root / "etc/systemd/system/multi-user.target.wants/gaccd.service"
    config, state = chroot.root / "etc/gacc/gaccd.yaml", chroot.root / "var/lib/gaccd"
    for deb in debs.values():
        shutil.copy(deb, chroot.root / "tmp")
    files = [f"/tmp/{deb.name}" for deb in debs.values()]
    chroot.apt("update")
    chroot.apt("install", *files)
    assert not (chroot.root / "usr/bin/systemd-sysusers").exists()  # adduser made the user
    assert wants.is_symlink()
    assert "gacc:gacc 660" in chroot("sh", "-c", SESSION)
    assert (state / "journal.sqlite").exists()

    config.write_text(config.read_text() + "# mine\n")
    chroot.apt("remove", "gaccd")
    assert config.exists() and state.exists() and not (chroot.root / "usr/sbin/gaccd").exists()
    chroot.apt("install", *files)
    assert config.read_text().endswith("# mine\n")
    chroot.apt("install", "--reinstall", *files)
    assert wants.is_symlink()

    kept = state / "checkpoints/1/step-5-1-0f0f0f0f"
    kept.mkdir(parents=True)
    (kept / "manifest.json").write_text("{}")
    chroot.apt("purge", *PACKAGES)
    assert [str(p.relative_to(state)) for p in state.rglob("*") if p.is_file()] == ["checkpoints/1/step-5-1-0f0f0f0f/manifest.json"]
    shutil.rmtree(state)
    assert chroot.traces() == [] and not wants.is_symlink()
    assert chroot("dpkg", "--audit") == ""
    chroot("getent", "passwd", "gacc")  # files elsewhere may be its own

    chroot("deluser", "--quiet", "gacc")
    chroot.apt("install", "systemd", "/tmp/" + debs["gaccd"].name)
    assert re.match("gacc:x:[0-9]+:[0-9]+:Gradient accumulation daemon:/var/lib/gaccd:/usr/sbin/nologin",
                    chroot("getent", "passwd", "gacc"))
    chroot.apt("purge", "gaccd")
    assert chroot.traces() == []
