# SPDX-License-Identifier: Apache-2.0
"""The Python package of the source tree, with the descriptor set of the build that is tested: `from python_package import gacc`."""
import os
import pathlib
import sys

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "client/python"
os.environ["GACC_PROTOSET"] = str(pathlib.Path(os.environ["GACC_BUILD_DIR"]) / "proto/gacc.protoset")
sys.path.insert(0, str(PACKAGE))
import gacc  # noqa: E402, F401


def environment(daemon=None, **more):
    """Of a process that imports the package, and of no rank."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GACC_", "RANK", "WORLD_SIZE"))}
    known = {"GACC_PROTOSET": os.environ["GACC_PROTOSET"], "PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"}
    at = {"GACC_ENDPOINT": daemon.endpoint, "GACC_TEST": str(daemon.dir), "XDG_STATE_HOME": str(daemon.dir)} if daemon else {}
    return {**clean, **known, **at, **{k: str(v) for k, v in more.items()}}
