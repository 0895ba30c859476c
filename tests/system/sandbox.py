# SPDX-License-Identifier: Apache-2.0
"""Runs a program under what a unit file demands of the kernel, without systemd:

    sandbox.py UNIT WRITABLE-DIR PROGRAM ARGUMENTS...

The system-call filter, the address families, MemoryDenyWriteExecute, RestrictNamespaces and RestrictSUIDSGID are one BPF
program, as in systemd 252; and, as root, there is no capability and (ProtectSystem=strict) no file system but WRITABLE-DIR
that can be written to.
"""
import ctypes
import errno
import os
import pathlib
import platform
import socket
import struct
import subprocess
import sys

ALLOW, ERROR = 0x7fff0000, 0x00050000  # linux/seccomp.h
AUDIT_ARCH = {"x86_64": 0xc000003e, "aarch64": 0xc00000b7}
LOAD, EQUAL, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x45, 0x54, 0x06  # linux/bpf_common.h
NUMBER, ARCH, ARGUMENT = 0, 4, lambda i: 16 + 8 * i  # struct seccomp_data, little-endian
PROT_WRITE, PROT_EXEC = 2, 4
CLONE_NEW = 0x7e020080  # every CLONE_NEW*
SUID_SGID = 0o6000


class Unit:
    """Settings of a unit file in their order: unit["User"] is the last value, unit.all("SystemCallFilter") are all."""

    def __init__(self, path):
        self.lines = [line.split("=", 1) for line in pathlib.Path(path).read_text().splitlines()
                      if "=" in line and not line.startswith("#")]

    def all(self, name):
        return [value for key, value in self.lines if key == name]

    def __getitem__(self, name):
        return self.all(name)[-1]


def calls_of(group):
    """The names in a group such as @system-service, groups in it included."""
    lines = subprocess.run(["systemd-analyze", "syscall-filter", group], check=True, capture_output=True,
                           text=True).stdout.split("\n")[1:]
    names = {line.strip() for line in lines if line.strip() and not line.strip().startswith("#")}
    return set().union(*(calls_of(n) if n.startswith("@") else {n} for n in names))


def allowed_calls(unit):
    """SystemCallFilter's lines, one after the other: the first makes it a list of what is allowed."""
    allowed = calls_of("@default")
    for value in unit.all("SystemCallFilter"):
        for name in value.removeprefix("~").split():
            calls = calls_of(name) if name.startswith("@") else {name}
            allowed = allowed - calls if value.startswith("~") else allowed | calls
    return allowed


def call_numbers():
    text = subprocess.run(["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"], check=True,
                          capture_output=True, text=True).stdout
    defines = [line.split() for line in text.splitlines() if line.startswith("#define __NR_")]
    return {d[1].removeprefix("__NR_"): int(d[2]) for d in defines if len(d) == 3 and d[2].isdigit()}


def instruction(code, k, if_true=0, if_false=0):
    return struct.pack("HBBI", code, if_true, if_false, k)


def refuse(error):
    return instruction(RETURN, ERROR | error)


def on_call(number, body):
    """`body` for this call; the accumulator holds the number before and after."""
    return instruction(EQUAL, number, 0, len(body) // 8 + 1) + body + instruction(LOAD, NUMBER)


def refuse_bits(argument, bits, all_of_them=False):
    """EPERM when the argument has one of these bits, or all of them."""
    load = instruction(LOAD, ARGUMENT(argument))
    if all_of_them:
        return load + instruction(AND, bits) + instruction(EQUAL, bits, 0, 1) + refuse(errno.EPERM)
    return load + instruction(ANY_BIT, bits, 0, 1) + refuse(errno.EPERM)


def filter_of(unit):
    nr, program = call_numbers(), b""
    program += instruction(LOAD, ARCH) + instruction(EQUAL, AUDIT_ARCH[platform.machine()], 1, 0) + refuse(errno.EPERM)
    program += instruction(LOAD, NUMBER)
    if unit["MemoryDenyWriteExecute"] == "yes":
        program += on_call(nr["mmap"], refuse_bits(2, PROT_WRITE | PROT_EXEC, True))
        program += on_call(nr["mprotect"], refuse_bits(2, PROT_EXEC)) + on_call(nr["pkey_mprotect"], refuse_bits(2, PROT_EXEC))
    if unit["RestrictNamespaces"] == "yes":
        program += on_call(nr["clone"], refuse_bits(0, CLONE_NEW)) + on_call(nr["clone3"], refuse(errno.ENOSYS))
    if unit["RestrictSUIDSGID"] == "yes":
        program += on_call(nr["fchmod"], refuse_bits(1, SUID_SGID)) + on_call(nr["fchmodat"], refuse_bits(2, SUID_SGID))
        program += on_call(nr["openat2"], refuse(errno.ENOSYS))
    families = [getattr(socket, name) for name in unit["RestrictAddressFamilies"].split()]
    allow_family = b"".join(instruction(EQUAL, f, 0, 1) + instruction(RETURN, ALLOW) for f in families)
    program += on_call(nr["socket"], instruction(LOAD, ARGUMENT(0)) + allow_family + refuse(errno.EAFNOSUPPORT))
    for name in sorted(allowed_calls(unit) & set(nr)):
        program += instruction(EQUAL, nr[name], 0, 1) + instruction(RETURN, ALLOW)
    return program + refuse(getattr(errno, unit["SystemCallErrorNumber"]))


def install(program):
    """For this process and all that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    # PR_SET_NO_NEW_PRIVS; PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    unit_path, writable, *command = sys.argv[1:]
    if command[0] != "--filtered":
        again = [sys.executable, __file__, unit_path, writable, "--filtered", *command]
        if os.geteuid() == 0:
            strict = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec setpriv "$@"'
            again = ["unshare", "--mount", "sh", "-c", strict, writable, "--bounding-set=-all", "--inh-caps=-all", *again]
        os.execvp(again[0], again)
    install(filter_of(Unit(unit_path)))
    os.execv(command[1], command[1:])
