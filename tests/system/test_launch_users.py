# SPDX-License-Identifier: Apache-2.0
"""launch: daemon, for other users than gaccd's own: ranks run as their submitter, and only what he could do is done for him."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

from harness import Daemon, GaccError, alive, wait_until
from launching import ALLOWED, launched, shell, wait_pids, wait_state

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to have a second user")
CAPABILITIES = ",+setuid,+setgid,+kill,+chown"  # gaccd-launch.conf


class AsNobody(Daemon):
    """A gaccd without root's rights, in a group that its ranks must not inherit; `capabilities`: with these, as the drop-in gaccd-launch.conf gives them."""

    def __init__(self, capabilities="", **how):
        super().__init__(conf={"listen.mode": "0666"}, **how)
        self.capabilities = capabilities

    def command(self):
        self.dir.chmod(0o755)
        os.chown(self.dir, 65534, 65534)
        caps = self.capabilities
        drop = [f"--inh-caps=-all{caps}", f"--bounding-set=-all{caps}"] + ([f"--ambient-caps=-all{caps}"] if caps else [])
        return ["setpriv", "--reuid=65534", "--regid=65534", "--groups=4", *drop, *super().command()]


def submit_as(daemon, user, spec, *request_id):
    """What trainers/submit_as.py prints: the job's id, or the error."""
    return subprocess.run([sys.executable, pathlib.Path(__file__).parent / "trainers/submit_as.py", daemon.endpoint, user,
                           json.dumps(spec), *request_id], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.strip()


@as_root
@pytest.mark.parametrize("make, user, uid", [(lambda: Daemon(conf={"listen.mode": "0666"}, allow=ALLOWED), "nobody", 65534),
                                             (lambda: AsNobody(CAPABILITIES, allow=ALLOWED), "daemon", 1)],
                         ids=["root", "capabilities"])
def test_drops_to_the_submitter(make, user, uid):
    """A second user's ranks: its uid and groups, no capability, a log that is its own; and not a byte of what only others may read."""
    with make() as d:
        os.chmod(d.dir, 0o755)
        secret = d.dir / "secret"
        secret.touch(0o600)
        script = f"""id -u; id -G; grep -E "Cap(Prm|Eff|Amb)" /proc/self/status; cat /proc/self/oom_score_adj
                     ls -ld $GACC_LOG_DIR; cat {secret}; exit 5"""
        job = int(submit_as(d, user, shell(d, script, ranks=1)))
        j = wait_state(d, job, "FAILED")
        assert j.user == user and j.root_cause.exit_status == 5
        lines = list(j.root_cause.log_tail)
        assert lines[0] == lines[1] == str(uid)
        assert [line.split()[1] for line in lines[2:5]] == ["0" * 16] * 3 and lines[5] == "0"
        assert lines[6].startswith("drwx------") and f" {user} " in lines[6]
        assert "Permission denied" in lines[7]
        assert os.stat(f"{j.log_dir}/worker_0.log").st_uid == uid
        # what ignores SIGTERM is another user's, and is killed all the same
        job = int(submit_as(d, user, shell(d, 'trap "" TERM; while :; do sleep 0.1; done', ranks=1, grace_ms=100)))
        [pid] = wait_pids(d, job, 1)
        wait_until("it is the user's", lambda: os.stat(f"/proc/{pid}").st_uid == uid)  # the launcher has told of it before
        d.cancel(job)
        wait_until("its death", lambda: not alive(pid))


@as_root
def test_a_link_in_the_place_of_a_log_is_not_followed(daemon):
    d = daemon
    d.allow += ALLOWED
    target, trap = d.dir / "target", d.dir / "trap"
    target.touch()
    trap.mkdir()
    (trap / "worker_0.log").symlink_to(target)
    j = wait_state(d, d.submit(shell(d, "echo overwritten", ranks=1, log_dir=str(trap))), "FAILED")
    assert "cannot write" in j.reason and "symbolic links" in j.root_cause.log_tail[0] and not target.read_text()


@as_root
def test_who_may_not_change_users_refuses_others():
    with AsNobody(allow=ALLOWED) as d:
        with pytest.raises(GaccError) as e:
            d.submit(launched("true"))
        assert (e.value.code, e.value.reason) == ("PERMISSION_DENIED", "PERMISSION_DENIED")
        assert "gaccd runs as nobody and may not start processes as root" in e.value.text and "gaccd-launch.conf" in e.value.text
        assert not d.client.jobs.List(all=True).jobs
        job = int(submit_as(d, "nobody", launched("sh", "-c", "id -u; exit 4", ranks=1)))  # the daemon's own user may
        assert wait_state(d, job, "FAILED").reason.endswith("exited with code 4: 65534")
