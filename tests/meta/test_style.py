"""Machines keep the style: formatters, linters, and words that do not belong into the product."""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tracked(*suffixes):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    names = [n for n in listed.stdout.decode().split("\0") if n]
    return [ROOT / n for n in names if n.endswith(suffixes) and (ROOT / n).exists()]


def run(*command):
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-4000:]


def test_clang_format():
    if not shutil.which("clang-format"):
        pytest.skip("clang-format is not installed")
    run("clang-format", "--dry-run", "--Werror", *map(str, tracked(".cc", ".h")))


@pytest.mark.slow
@pytest.mark.timeout(1200)  # each file is compiled once more
def test_clang_tidy():
    """Names and a few kinds of bugs, see .clang-tidy. Reads how the plain lane of scripts/test compiles each file."""
    database = ROOT / "build" / "plain"
    if not shutil.which("clang-tidy"):
        pytest.skip("clang-tidy is not installed")
    if not (database / "compile_commands.json").exists():
        pytest.skip("build/plain is not configured; ./scripts/test does it")
    compiled = {Path(entry["file"]) for entry in json.loads((database / "compile_commands.json").read_text())}
    # clang 14 does not know the name "f16c" of a CPU's feature, which g++ does.
    unknown = {ROOT / "cpp/store/kernels.cc"}
    files = [path for path in tracked(".cc") if path in compiled - unknown and ROOT / "cpp" in path.parents]
    assert len(files) > 30

    def check(path):
        command = ["clang-tidy", "--quiet", "-p", str(database), str(path)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        return "" if done.returncode == 0 else f"{path}: {done.stdout.decode(errors='replace')[-2000:]}"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [text for text in pool.map(check, files) if text]
    assert found == []


def test_ruff():
    run(sys.executable, "-m", "ruff", "check", "mxrdma", "tests", "scripts")


def test_mypy():
    run(sys.executable, "-m", "mypy", "mxrdma")


def test_shell_scripts_parse():
    scripts = [p for p in tracked("") if p.read_bytes()[:64].startswith(b"#!/usr/bin/env bash")]
    assert scripts
    for script in scripts:
        run("bash", "-n", str(script))


def test_the_two_commands_can_be_run():
    for name in ("scripts/demo", "scripts/test"):
        assert (ROOT / name).stat().st_mode & 0o111, f"{name} lacks the run bit"


def test_no_machine_paths_or_unfinished_marks():
    # Spelt in parts so that this file does not find itself.
    words = ["/" + "work/", "/" + "farm/", "TO" + "DO", "FIX" + "ME", "X" + "XX", "index" + "-url", "trusted" + "-host"]
    pattern = re.compile("|".join(re.escape(word) for word in words))
    found = []
    for path in tracked(".py", ".cc", ".h", ".md", ".toml", ".txt", ".yaml", ".sh", "scripts/demo", "scripts/test"):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_no_large_or_binary_files_are_tracked():
    for path in tracked(""):
        assert path.stat().st_size < 1_000_000, path
        assert path.suffix not in (".so", ".o", ".whl", ".npz", ".pyc"), path
