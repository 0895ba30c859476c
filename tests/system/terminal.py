# SPDX-License-Identifier: Apache-2.0
"""Programs that write to a terminal."""
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios


def on_terminal(command, env, columns=200):
    """(what a terminal of this width got of the program's standard error, its standard output, its status)"""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([str(c) for c in command], env=env, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    got = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            more = os.read(ours, 65536)
        except OSError:  # its end is closed
            break
        got += more
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    return got.decode(), out, process.returncode


def lines_shown(text):
    """All that stood in a line of the terminal at some time."""
    return [line for line in re.split(r"\r|\n|\x1b\[K", text) if line.strip()]
