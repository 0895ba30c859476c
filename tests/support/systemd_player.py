#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Plays the service manager to a program, as systemd does with Type=notify, NotifyAccess=main, Restart=always, WatchdogSec= and
FileDescriptorStoreMax=: sd_notify(3), sd_pid_notify_with_fds(3), sd_listen_fds_with_names(3). Written from these manual pages alone, so
that gaccd is tested against the protocol and not against its own supervisor.

    systemd_player.py WATCHDOG_MS PROGRAM ARGUMENT...

SIGTERM ends the program, then this. Ends with the program's status if that refuses to start (exit status 2; 1, unless $PLAYER_LIMIT is set).
A file $PLAYER_LIMIT with a number is the LimitNOFILE= of the next start; a file $PLAYER_FORGETS with a name: what is stored under it is dropped.
"""
import os
import pathlib
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import time

RESTART_S = 0.2
STORE_MAX = 4096
MAX_FDS = 253  # of one message: SCM_MAX_FD
LIMIT = os.environ.get("PLAYER_LIMIT")
FORGETS = os.environ.get("PLAYER_FORGETS")


class Player:
    def __init__(self, watchdog_ms, command):
        self.watchdog_s, self.command = watchdog_ms / 1000, command
        self.dir = tempfile.mkdtemp(prefix="gaccd-notify.")
        self.address = f"{self.dir}/notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.bind(self.address)
        self.store = []  # (name, descriptor), in the order they came
        self.pid, self.fed, self.stopping = 0, 0.0, False
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.on_term)

    def on_term(self, *_):
        self.stopping = True
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)

    def start(self):
        if FORGETS and pathlib.Path(FORGETS).exists():
            self.remove(pathlib.Path(FORGETS).read_text())
        pid = os.fork()
        if pid:
            self.pid, self.fed = pid, time.monotonic()
            return
        try:
            env = {**os.environ, "NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": str(int(self.watchdog_s * 1e6)), "WATCHDOG_PID": str(os.getpid()), "FDSTORE": str(STORE_MAX)}
            if self.store:
                env.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(self.store)), LISTEN_FDNAMES=":".join(n for n, _ in self.store))
            # out of the way first: the targets 3.. may be sources of others
            high = [os.dup2(fd, 3 + 2 * STORE_MAX + i, inheritable=False) for i, (_, fd) in enumerate(self.store)]
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i, inheritable=True)
            for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
                signal.signal(signum, signal.SIG_DFL)
            if LIMIT and pathlib.Path(LIMIT).exists():
                resource.setrlimit(resource.RLIMIT_NOFILE, (int(pathlib.Path(LIMIT).read_text()),) * 2)
            os.execve(self.command[0], self.command, env)
        finally:
            os._exit(203)

    def remove(self, name):
        for n, fd in self.store:
            if n == name:
                os.close(fd)
        self.store = [(n, fd) for n, fd in self.store if n != name]

    def keep(self, name, fd):
        """A descriptor of the same file under the same name is stored once."""
        a = os.fstat(fd)
        if len(self.store) < STORE_MAX and not any(n == name and os.path.samestat(a, os.fstat(other)) for n, other in self.store):
            self.store.append((name, fd))
        else:
            os.close(fd)

    def message(self):
        data, ancillary, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(4 * MAX_FDS) + socket.CMSG_SPACE(12), socket.MSG_CMSG_CLOEXEC)
        fds, sender = [], 0
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += struct.unpack(f"{len(payload) // 4}i", payload[:len(payload) // 4 * 4])
            elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                sender = struct.unpack("3i", payload)[0]
        lines = dict(line.split("=", 1) for line in data.decode().splitlines() if "=" in line)
        name = lines.get("FDNAME", "stored")
        if sender == self.pid:  # NotifyAccess=main
            if "WATCHDOG" in lines:
                self.fed = time.monotonic()
            if lines.get("FDSTOREREMOVE") == "1":
                self.remove(name)
            elif lines.get("FDSTORE") == "1":
                for fd in fds:
                    self.keep(name, fd)
                fds = []
        for fd in fds:  # also that of BARRIER=1: closing it is the answer
            os.close(fd)

    def run(self):
        self.start()
        restart_at = 0.0
        while True:
            wait = (restart_at if not self.pid else self.fed + self.watchdog_s) - time.monotonic()
            ready, _, _ = select.select([self.socket, self.wake_read], [], [], max(wait, 0.001))
            if self.wake_read in ready:
                os.read(self.wake_read, 4096)
            if self.socket in ready:
                self.message()
            if self.pid:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    code = os.waitstatus_to_exitcode(status)
                    if self.stopping or code in (2, 203) or (code == 1 and not LIMIT):
                        return max(code, 0)
                    self.pid, restart_at = 0, time.monotonic() + RESTART_S
                elif time.monotonic() - self.fed > self.watchdog_s:
                    os.kill(self.pid, signal.SIGKILL)  # systemd sends SIGABRT first: a stopped process heeds neither
            elif self.stopping:
                return 0
            elif time.monotonic() >= restart_at:
                self.start()

    def close(self):
        self.socket.close()
        os.unlink(self.address)
        os.rmdir(self.dir)


if __name__ == "__main__":
    player = Player(int(sys.argv[1]), sys.argv[2:])
    try:
        sys.exit(player.run())
    finally:
        player.close()
