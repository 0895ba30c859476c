# SPDX-License-Identifier: Apache-2.0
"""The attach socket: how a trainer gets the descriptors of its gradient buffers (proto/gacc/v1/attach.proto)."""
import mmap
import os
import socket
import time

SLOT, PARAMETERS, STATUS, REDUCED, MAILBOX, SUBMIT, ANSWER = range(1, 8)  # enum SegmentKind


def connected(attached):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(attached.attach_socket)
    return s


def map_session(gacc, attached, bells=None, device=False):
    """Maps what this session may: {(kind, index): (mmap, offset of the data in it)}. Call it after RegisterTensors. Keep the socket
    that is returned beside it: when it closes, gaccd takes this process for gone.

    With `device`, gaccd is told that a GPU writes to the slots: say so before they are registered with its driver.
    With a dictionary for `bells`, a mailbox is asked for: it gets the mailbox's descriptors, {kind: descriptor}, if gaccd gives one.
    """
    end, lifeline = time.monotonic() + 60, connected(attached)
    while True:
        lifeline.send(gacc.message("MapRequest")(version=1, session=attached.session, wants_mailbox=bells is not None, device=device).SerializeToString())
        answer, fds, _, _ = socket.recv_fds(lifeline, 8192, 16)
        mapped = gacc.message("MapResponse").FromString(answer)
        if mapped.reason != "NO_SLOT" or time.monotonic() > end:  # else an earlier process holds them, or others are being made
            break
        lifeline.close()
        time.sleep(0.1)
        lifeline = connected(attached)
    if mapped.reason:
        raise RuntimeError(f"{mapped.reason}: {mapped.message}")
    memory = {}
    for segment, fd in zip(mapped.segments, fds):
        if segment.kind in (MAILBOX, SUBMIT, ANSWER) and bells is not None:
            bells[segment.kind] = fd
            continue
        if segment.kind <= REDUCED:  # or one that a later gaccd has
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if segment.kind == SLOT else 0)
            memory[segment.kind, segment.index] = (mmap.mmap(fd, segment.bytes, mmap.MAP_SHARED, prot), segment.data_offset)
        os.close(fd)
    return memory, lifeline
