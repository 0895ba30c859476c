# SPDX-License-Identifier: Apache-2.0
"""What README.md and docs/ name exists: files, commands, keys, events, statuses, variables; and their job files are valid."""
import pathlib
import re
import subprocess

import pytest

from harness import build_dir

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SUFFIXES = {".c", ".h", ".cc", ".proto", ".py", ".sh", ".txt", ".yaml", ".service", ".conf", ".in", ".cmake", ".8"}
# of others: classes and products, Open MPI's and systemd's variables
FOREIGN = set("""WireGuard PyTorch TensorBoard NumPy OpenBLAS MindSpore GradAccumulation FashionMNIST GradScaler FusedLAMB LinearLR CosineAnnealingLR StepLR AdamW
BatchNorm DistributedDataParallel MemoryMax ReadWritePaths CAP_SYS_ADMIN CAP_SYS_RESOURCE CLONE_VM CLONE_VFORK HYBRID_SHARD EXCLUSIVE_PROCESS
CUDA_DEVICE_ORDER GeminiPlugin""".split())


def code():
    files = [p for top in ("client", "daemon", "deploy", "proto", "tests") for p in (ROOT / top).rglob("*") if p.suffix in SUFFIXES]
    files = [p for p in files if p != pathlib.Path(__file__).resolve()]
    return "\n".join(p.read_text(errors="replace") for p in [ROOT / "CMakeLists.txt", *files])


WORDS = set(re.findall(r"\w+", code()))


def output_of(program, *arguments):
    return subprocess.run([build_dir() / "bin" / program, *arguments], check=True, capture_output=True, text=True, timeout=30).stdout


def commands():
    return set(re.findall(r"^  ([a-z]+)  ", output_of("gaccctl", "--help").split("Global options:")[0], re.M))


def section(text, title):
    return re.search(rf"^## [0-9. ]*{title}$(.*?)(?=^## |\Z)", text, re.M | re.S)[1]


def first_column(text):
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_names_are_those_of_the_code(document):
    """Events and messages (TwoWords), statuses and variables (TWO_WORDS)."""
    text = document.read_text()
    named = set(re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b|\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", text))
    unknown = sorted(named - WORDS - FOREIGN)
    assert not unknown


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_files_exist(document):
    """Links; and paths from the top, or from daemon/ as in `edge/reply.c`."""
    text = document.read_text()
    named = set(re.findall(r"\]\((?!http)([^)#]+)", text))
    missing = {path for path in named if not (document.parent / path).exists()}
    paths = set(re.findall(r"(?<![\w./-])((?:base|client|cluster|coll|control|daemon|deploy|docs|edge|engine|host|launch|math|proto|rpc|runtime|store|tests)/[\w./-]+\.[a-z]+)\b", text))
    missing |= {p for p in paths if not any((top / p).exists() for top in (ROOT, ROOT / "daemon", ROOT / "proto"))}
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_commands_exist(document):
    named = set(re.findall(r"(?:`|\$ |^    |/)gaccctl ([a-z]+)", document.read_text(), re.M))
    assert not named - commands()


def test_operations_has_every_command_and_every_key():
    text = (ROOT / "docs/operations.md").read_text()
    shown = set(re.findall(r"`(?:gaccctl )?([a-z]+)[ `]", text))
    missing = sorted(commands() - shown - {"help", "completion", "version"})
    assert not missing
    keys = {key for cell in first_column(section(text, "Configure")) for key in re.split(", ", cell)}
    section_of, real = "", set()
    for line in (ROOT / "deploy/gaccd.yaml").read_text().splitlines():
        if m := re.match(r"(\w+):$", line):
            section_of = m[1] + "."
        elif m := re.match(r"( *)#(\w+): ", line):
            real.add((section_of if m[1] else "") + m[2])
    assert sorted(keys) == sorted(real)


def test_operations_explains_every_event():
    """Those that gaccctl shows; what is only logged speaks for itself."""
    source = "\n".join(p.read_text() for p in (ROOT / "daemon").rglob("*.c"))
    events = set(re.findall(r'(?:\w+_event|ports\.event)\([^";]*"([A-Z][a-z]+(?:[A-Z][a-z]+)*)"', source))
    assert len(events) > 20
    explained = set(re.findall(r"\w+", (ROOT / "docs/operations.md").read_text()))
    assert not events - explained


def test_reasons_are_in_the_table_of_statuses():
    statuses = set(re.findall(r"^\s*X\((\w+),", (ROOT / "proto/status.h").read_text(), re.M)) or WORDS
    named = [r for cell in first_column(section((ROOT / "docs/integrate.md").read_text(), "Errors")) for r in cell.split(", ")]
    assert len(named) > 20 and not {r for r in named if r != "(no reason)"} - statuses


# of the C library, the kernel and SQLite
FOREIGN_MESSAGES = {"No such file or directory", "Connection refused", "Permission denied", "Too many open files", "Cannot allocate memory",
                    "disk I/O error", "Segmentation fault", "File too large"}


def test_messages_that_troubleshooting_quotes_are_those_of_the_code():
    """Their fixed parts: what lies between numbers, names and paths."""
    sources = [p for top in ("client", "daemon", "proto") for p in (ROOT / top).rglob("*") if p.suffix in (".c", ".h")]
    literal = re.sub(r'"\s*(?:(?:PRI|QUEUE_|DISK_WATCH_)\w+\s*)?"', " ", "\n".join(p.read_text(errors="replace") for p in sources))
    literal = " ".join(literal.split())
    unknown = set()
    for cell in first_column(section((ROOT / "docs/operations.md").read_text(), "Troubleshooting")):
        for message in re.findall(r"`([^`]+)`", cell):
            parts = re.split(r'\.\.\.?|\b\d[\d.]*|"[^"]*"|\([^)]*\)|[:,;]|\S*[/@]\S*|\b(?:[KMGT]iB|unix|alice|gacc|fails)\b|\S+\.sock\S*', message)
            parts = [" ".join(p.split()) for p in parts]
            unknown |= {p for p in parts if len(p) > 12 and p not in literal and p not in FOREIGN_MESSAGES}
    composed = {"and can never run here", "descriptors and can never run here", "mappings and can never run here", "no room for a new job",
                "ftruncate of a segment of"}
    assert not unknown - composed


def test_job_files_are_valid(tmp_path):
    """Those of the documents, which begin with spec:, and the examples."""
    files = list((ROOT / "client/examples").glob("*.yaml"))
    for document in DOCUMENTS:
        for i, block in enumerate(re.findall(r"^    spec:\n(?:    .*\n)+", document.read_text(), re.M)):
            files.append(tmp_path / f"{document.stem}{i}.yaml")
            files[-1].write_text(re.sub(r"^    ", "", block, flags=re.M) + ("" if "optimizer:" in block else "  optimizer: { type: adamw }\n"))
    assert len(files) > 3
    for file in files:
        assert output_of("gaccctl", "config", "validate", str(file)).endswith(": ok\n")
