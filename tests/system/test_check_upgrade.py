# SPDX-License-Identifier: Apache-2.0
"""gaccd --check-upgrade: what another build would mean for the jobs of a node, beside a gaccd that runs, and without one."""
import re
import subprocess
import sys

import pytest

from harness import Daemon


@pytest.fixture
def d():
    with Daemon(supervise=True) as daemon:
        yield daemon


def check(d):
    r = subprocess.run([w for w in d.command() if w != "--supervise"] + ["--check-upgrade"], capture_output=True, text=True, timeout=20)
    assert not r.stderr, r.stderr
    return r.returncode, r.stdout


def note(d):
    return d.dir / "state/build"


def change(d, **values):
    text = note(d).read_text()
    for key, value in values.items():
        text, n = re.subn(rf"^{key} .*$", f"{key} {value}", text, flags=re.M)
        assert n == 1
    note(d).write_text(text)


@pytest.mark.parametrize("code,words,values", [
    (0, "from gaccd .* to ", {}),
    (0, r"there is no way back", {"journal": 1}),
    (0, r"from gaccd 0\.0\.9 to ", {"version": "0.0.9"}),
    (3, r"wait   engines: gloo/1 and kernels of revision", {"coll": "gloo/1"}),
    (3, r"wait   engines: .* kernels of revision 9, and this build", {"kernels": 9}),
    (3, r"wait   launchers: ", {"launchers": 99}),
    (3, r"wait   links: protocol 8 to 9", {"protocol_min": 8, "protocol_max": 9}),
    (4, r"LOSES  memory: layout 5, and this build has .*gaccctl pause, checkpoint save, cancel", {"segments": 5}),
    (0, r"ok     journal: the same schema\n", {"journal": 99}),  # what the journal itself says counts
    (1, r"not known: .*state/build: kernels is missing or wrong; a restart", {"kernels": "x"}),
])
def test_what_it_says_and_with_which_exit_code(d, code, words, values):
    assert check(d)[0] == 0
    change(d, **values)
    is_code, said = check(d)
    assert is_code == code and re.search(words, said), said
    d.kill_gaccd()
    d.wait_ready()
    assert check(d)[0] == 0  # the gaccd that runs has noted what it is


def test_nobody_has_run_here(d):
    note(d).unlink()
    code, said = check(d)
    assert code == 1 and "no gaccd that says what it is has run with this state_dir: see the release notes of both" in said


def test_a_note_that_cannot_be_written(d):
    """What is left is not that of another build."""
    (d.dir / "state/build.new").mkdir()
    note(d).write_text("of another build")
    d.allow.append("cannot write .*state/build")
    d.kill_gaccd()
    d.wait_ready()
    assert check(d)[0] == 1 and not note(d).exists()
    (d.dir / "state/build.new").rmdir()


# in a process that dies with the database open: what it has committed is in the write-ahead log, and not yet in the file
SET_VERSION = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA wal_autocheckpoint = 0")
db.execute(f"PRAGMA user_version = {sys.argv[2]}")
if sys.argv[3] == "file":
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("where", ["log", "file"])
def test_a_newer_gaccd_has_changed_the_journal_and_has_not_started(where):
    """So it has left no note, or there is only that of the gaccd before."""
    with Daemon(supervise=False) as d:
        journal = d.dir / "state/journal.sqlite"
        d.kill_gaccd()
        subprocess.run([sys.executable, "-c", SET_VERSION, journal, "99", where], check=False, timeout=20)
        before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in journal.parent.glob("journal*")}
        assert (before["journal.sqlite"][0][63] == 99) == (where == "file")
        code, said = check(d)
        assert code == 4 and re.search("LOSES  journal: schema 99, and this build knows .* which is newer than .* and has not run", said), said
        note(d).unlink()
        code, said = check(d)
        assert code == 4 and "it would not start. Install the gaccd that has written it, or a later one" in said, said
        assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in journal.parent.glob("journal*")} == before
        journal.unlink()
        journal.mkdir()
        code, said = check(d)
        assert code == 1 and re.search("not known: .*journal.sqlite: ", said), said
        journal.rmdir()
        for path in journal.parent.glob("journal*"):
            path.unlink()
        d.start()
