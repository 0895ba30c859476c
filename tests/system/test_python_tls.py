# SPDX-License-Identifier: Apache-2.0
"""The Python package and a gaccd on another machine: certificates on both sides, tokens, and what is said when they are not right. The variables are
those of gaccctl. A rank of such a job sends its gradients in messages."""
import asyncio
import subprocess
import threading
import time

import numpy as np
import pytest

from cluster import MAKE_CERTS
from harness import Daemon, free_port
from python_package import gacc

SGD = {"type": "sgd", "lr": 1.0}
TOKEN = "0123456789abcdef0123456789abcdef\n"


class Place:
    """A gaccd with certificates, one with a token, and one with neither TLS nor a port; files that are right, and that are not."""

    def __init__(self, folder):
        self.at, self.token_at = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        for name, who in (("lab", ["coordinator/a=127.0.0.1", "admin/ana"]), ("other", ["admin/bob"])):
            subprocess.run(["sh", MAKE_CERTS, folder / name, *who], check=True, stdout=subprocess.DEVNULL)
        for name, text in (("token", TOKEN), ("old", TOKEN[::-1].strip() + "\n"), ("empty", "")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o600)
        self.folder = folder
        self.mine = {"CA": folder / "lab/ca.pem", "CERT": folder / "lab/admin-ana.pem", "KEY": folder / "lab/admin-ana.key"}
        allow = ["[Hh]andshake", "TLS", "a connection", "lines were suppressed", " RankLost job=", " Ended job="]
        certs = {f"tls.{k}": folder / f"lab/{v}" for k, v in (("cert", "coordinator-a.pem"), ("key", "coordinator-a.key"), ("ca", "ca.pem"))}
        self.daemons = [Daemon(conf={"listen.tcp": self.at, **certs}, allow=allow),
                        Daemon(conf={"listen.tcp": self.token_at, "listen.token_file": folder / "token"}, allow=allow)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made = Place(tmp_path_factory.mktemp("tls"))
    with made.daemons[0], made.daemons[1]:
        yield made


@pytest.fixture
def variables(place, monkeypatch):
    """variables(CA=.., token=..) sets them, and no others."""
    def set_all(token=None, **files):
        for name in ("GACC_TLS_CA", "GACC_TLS_CERT", "GACC_TLS_KEY", "GACC_TOKEN_FILE"):
            monkeypatch.delenv(name, raising=False)
        for name, path in files.items():
            monkeypatch.setenv("GACC_TLS_" + name, str(path))
        if token:
            monkeypatch.setenv("GACC_TOKEN_FILE", str(place.folder / token))
    return set_all


async def asked(endpoint):
    async with gacc.aio.connect(endpoint) as client:
        return await client.jobs(all=True)


@pytest.mark.parametrize("way", ["certificates", "token"])
def test_a_rank_trains(place, variables, way):
    """Gradients and parameters travel over the network, and both clients see the job."""
    endpoint = place.at if way == "certificates" else place.token_at
    variables(**place.mine) if way == "certificates" else variables("token")
    with gacc.connect(endpoint) as client:
        job = client.submit(name="far", ranks=1, micro_size=2, steps=2, optimizer=SGD)
        with gacc.attach(job, 0, 1, endpoint=endpoint) as session:
            session.register({"w": ("f32", (300_000,)), "b": ("bf16", (3,))})
            session.upload([np.ones(300_000), np.ones(3)])
            assert session.is_inline and not session.has_mailbox
            while not session.done:
                for _ in session.missing:
                    session.fill([np.full(300_000, 0.5), np.zeros(3)])
                    assert session.push(asynchronous=True).counted
                session.wait()
            assert (session.parameters["w"] == 0).all()
        assert client.wait(job, timeout=30).state == "COMPLETED" and [s.window for s in client.steps(job, 0)] == [0, 1]
    assert [j.name for j in asyncio.run(asked(endpoint))] == ["far"]


def others(place):
    return {"CERT": place.folder / "other/admin-bob.pem", "KEY": place.folder / "other/admin-bob.key"}


WRONG = {
    "nothing": (lambda p: {}, "TLS", "has TLS, and GACC_TLS_CA, GACC_TLS_CERT and GACC_TLS_KEY are not set", "set them"),
    "one of three": (lambda p: {"CA": p.mine["CA"]}, "INVALID_ARGUMENT", "go together, but 1 of them is set", "set GACC_TLS_CERT, GACC_TLS_KEY, too"),
    "another CA": (lambda p: {**p.mine, "CA": p.folder / "other/ca.pem"}, "TLS", "gaccd's certificate at 127.0.0.1", "GACC_TLS_CA must be that of"),
    "a stranger": (lambda p: {**p.mine, **others(p)}, "TLS", "does not accept the certificate in GACC_TLS_CERT, ", "not expired and not revoked"),
    "another key": (lambda p: {**p.mine, "KEY": others(p)["KEY"]}, "INVALID_ARGUMENT", "the key is not that of the certificate", "make-certs.sh"),
    "no key": (lambda p: {**p.mine, "KEY": p.folder / "none.key"}, "IO_ERROR", "none.key: No such file or directory", "unset GACC_TLS_KEY"),
    "no PEM": (lambda p: {**p.mine, "CA": p.folder / "token"}, "INVALID_ARGUMENT", "GACC_TLS_CA: ", "ca.pem"),
    "no certificate": (lambda p: {**p.mine, "CERT": p.folder / "token"}, "INVALID_ARGUMENT", "no certificate and key in PEM", "make-certs.sh"),
}


@pytest.mark.parametrize("client", ["connect", "history", "aio", "aio.history", "attach"])
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_certificates_is_said_at_once(place, variables, case, client):
    files, reason, text, hint = WRONG[case]
    variables(**files(place))
    start = time.monotonic()
    with pytest.raises(gacc.GaccError) as e:
        if client == "connect":
            gacc.connect(place.at).jobs()
        elif client == "history":  # a stream
            gacc.history("j", endpoint=place.at)
        elif client == "aio.history":
            asyncio.run(gacc.aio.history("j", endpoint=place.at))
        elif client == "aio":
            asyncio.run(asked(place.at))
        else:
            gacc.attach("j", 0, 1, spec={"optimizer": SGD}, endpoint=place.at)
    assert (e.value.reason, e.value.is_retryable) == (reason, False) and text in str(e.value) and hint in e.value.hint
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("token, reason, text", [
    ("old", "UNAUTHENTICATED", "token"), (None, "UNAUTHENTICATED", "token"), ("empty", "INVALID_ARGUMENT", "empty: its first line is no"),
    ("none", "IO_ERROR", "none: No such file")])
def test_what_is_wrong_with_a_token(place, variables, token, reason, text):
    variables(token)
    at = place.token_at
    for call in (lambda: gacc.connect(at).jobs(), lambda: asyncio.run(asked(at)), lambda: gacc.attach("j", 0, 1, endpoint=at)):
        with pytest.raises(gacc.GaccError) as e:
            call()
        assert e.value.reason == reason and text in str(e.value) and e.value.hint


def test_certificates_for_a_gaccd_without_tls(place, variables):
    variables("token", **place.mine)
    for call in (lambda: gacc.connect(place.token_at).jobs(), lambda: asyncio.run(asked(place.token_at))):
        with pytest.raises(gacc.GaccError, match="has no TLS") as e:
            call()
        assert e.value.reason == "TLS" and "unset GACC_TLS_CA" in e.value.hint


def test_a_gaccd_that_is_away_is_waited_for(place, variables):
    """Nobody listens, which is no error of TLS; then somebody does."""
    variables("token")
    at = f"127.0.0.1:{free_port()}"
    with pytest.raises(gacc.GaccError) as e:
        gacc.connect(at, outage=1.5).jobs()
    assert e.value.code == "UNAVAILABLE" and e.value.hint
    later = Daemon(conf={"listen.tcp": at, "listen.token_file": place.folder / "token"}, start=False)
    with later, gacc.connect(at, outage=30) as client:
        found = []
        waiting = threading.Thread(target=lambda: found.append(client.jobs()))
        waiting.start()
        time.sleep(1)
        later.start()
        waiting.join(30)
        assert found == [[]]
