# SPDX-License-Identifier: Apache-2.0
"""Makes gacc/gacc.protoset, the descriptor set from which the package makes its messages, before anything is packed. It is not checked in.

In a source tree of gacc it is made of proto/gacc/v1 by protoc, or by grpcio-tools where there is no protoc; GACC_PROTOSET names one that is built
already (build/proto/gacc.protoset). A source distribution has it in it.
"""
import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
PROTO, PROTOSET = HERE.parents[1] / "proto", HERE / "gacc" / "gacc.protoset"
FILES = [f"gacc/v1/{name}.proto" for name in ("attach", "common", "gradient", "job", "node")]


def make_protoset():
    built = os.environ.get("GACC_PROTOSET")
    if built:
        shutil.copyfile(built, PROTOSET)
        return
    if not (PROTO / FILES[0]).exists():
        if not PROTOSET.exists():
            sys.exit(f"neither {PROTO}/gacc/v1 nor {PROTOSET} is there: build in a source tree of gacc")
        return
    protoc = [os.environ.get("PROTOC") or shutil.which("protoc")]
    if not protoc[0]:
        protoc = [sys.executable, "-m", "grpc_tools.protoc"]
    command = [*protoc, "-I.", "--include_imports", f"--descriptor_set_out={PROTOSET}", *FILES]
    if subprocess.run(command, cwd=PROTO, check=False).returncode:
        sys.exit("no protoc: install protobuf-compiler or grpcio-tools, or set GACC_PROTOSET to build/proto/gacc.protoset")


class BuildPy(build_py):
    def run(self):
        make_protoset()
        super().run()


class Sdist(sdist):
    def run(self):
        make_protoset()
        super().run()


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
