"""A gaccd that cannot start says why and ends."""
import subprocess

from harness import build_dir


def test_socket_of_a_running_gaccd(daemon, tmp_path):
    second = subprocess.run([build_dir() / "bin/gaccd", "--set", f"listen.socket={daemon.socket}", "--set", f"state_dir={tmp_path}/state",
                             "--set", f"runtime_dir={tmp_path}/run"], capture_output=True, text=True, timeout=20)
    assert second.returncode == 2
    assert "a running daemon has it" in second.stderr and "cannot start: its socket is in use" in second.stderr
    assert daemon.client.node.GetNode().pid == daemon.pid


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    gaccd = subprocess.run([build_dir() / "bin/gaccd", "--set", f"runtime_dir={tmp_path}/file/run", "--set", f"state_dir={tmp_path}"],
                           capture_output=True, text=True, timeout=20)
    assert gaccd.returncode == 1
    assert f"cannot make {tmp_path}/file/run (runtime_dir): Not a directory" in gaccd.stderr
