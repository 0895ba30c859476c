# SPDX-License-Identifier: Apache-2.0
"""Bad inputs, in tables: what is sent, how, and what must come back. tests/system/test_bad_inputs.py sends them all to one gaccd
in which a job trains on, and compares that job's numbers bit for bit with an undisturbed run.

A row has four regular expressions: the answer's code (gRPC's name, or what the way of sending has in its place) and its reason (a name of
proto/status.h) as a whole, the offending value somewhere in the text, and what to do next somewhere in the hint. Where the transport
itself refuses, before anything of ours sees the call, there is no reason and no hint.
"""
import dataclasses
from typing import Callable


@dataclasses.dataclass(frozen=True)
class Row:
    id: str
    send: Callable  # of the stage; returns an Answer
    code: str
    reason: str
    value: str
    hint: str


@dataclasses.dataclass(frozen=True)
class Answer:
    code: str
    reason: str = ""
    text: str = ""
    hint: str = ""


OK = Answer("OK")


def rpc(method, *fields_or_bytes, session=None, timeout=20, **fields):
    """A call "GradientService/Push". Fields become its request, or each positional argument (a dict, a function of the stage, or bytes)
    one message of a stream. `session` names one of the stage's sessions."""
    def send(stage):
        messages = list(fields_or_bytes) or [fields]
        if session:
            messages[0] = {**(messages[0](stage) if callable(messages[0]) else messages[0]), "session": stage.sessions[session]}
        return stage.call(method, messages, timeout)
    return send
