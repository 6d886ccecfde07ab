"""Runs the tests that need RDMA devices; inside the guest of scripts/soft-roce, or on a machine with such devices.

Each C++ test is a process of its own with a limit of its own. Beside the verdict, the JUnit files hold what each test moved
through the devices by their own count (rdma_packets), so that a test that quietly took another way is seen.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEST_LIMIT_S = 120


def packets():
    """What all rxe devices have sent so far. Devices without this counter (siw) add nothing."""
    total = 0
    for path in Path("/sys/class/infiniband").glob("*/ports/*/hw_counters/sent_pkts"):
        total += int(path.read_text())
    return total


def gtest_names(program, pattern):
    """Full names of the program's tests that the pattern selects."""
    listed = subprocess.run(
        [program, "--gtest_list_tests", f"--gtest_filter={pattern}"], stdout=subprocess.PIPE, check=True, timeout=TEST_LIMIT_S
    )
    names, suite = [], ""
    for line in listed.stdout.decode().splitlines():
        word = line.split("#")[0].rstrip()
        if word.endswith(".") and not line.startswith(" "):
            suite = word
        elif line.startswith("  "):
            names.append(suite + word.strip())
    return [name for name in names if "DISABLED_" not in name]


def run_gtest(program, name, limit_s):
    """(failure or None, skip reason or None, output)"""
    try:
        done = subprocess.run(
            [program, f"--gtest_filter={name}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return f"not ended within {limit_s:.0f} s", None, (error.stdout or b"").decode(errors="replace")
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        return f"exit status {done.returncode}", None, output
    if "[  SKIPPED ]" in output:
        before = output.split("[  SKIPPED ]")[0].splitlines()
        return None, next((line for line in reversed(before) if line.strip() and not line.startswith("[")), "skipped"), output
    if "[       OK ]" not in output:
        return "no test of this name ran", None, output
    return None, None, output


def cpp_tests(build, pattern, results, name, deadline):
    """Writes results/verbs-NAME-cpp.xml; returns whether all went well."""
    suite = ElementTree.Element("testsuite", name=f"verbs-{name}-cpp")
    good = True
    programs = sorted(build.glob("tests/cpp/*_tests"))
    if not programs:
        print(f"no C++ tests are built in {build}", flush=True)
        return False
    for program in programs:
        for test in gtest_names(program, pattern):
            case = ElementTree.SubElement(suite, "testcase", classname=program.name, name=test)
            left = deadline - time.monotonic()
            begin, sent = time.monotonic(), packets()
            if left <= 0:
                failure, skipped, output = "no time was left for it", None, ""
            else:
                failure, skipped, output = run_gtest(program, test, min(TEST_LIMIT_S, left))
            case.set("time", f"{time.monotonic() - begin:.3f}")
            properties = ElementTree.SubElement(case, "properties")
            ElementTree.SubElement(properties, "property", name="rdma_packets", value=str(packets() - sent))
            if failure:
                good = False
                ElementTree.SubElement(case, "failure", message=failure)
                print(f"FAILED {test}: {failure}\n{output[-4000:]}", flush=True)
            if skipped:
                ElementTree.SubElement(case, "skipped", message=skipped)
            # XML has no control characters.
            ElementTree.SubElement(case, "system-out").text = "".join(c for c in output[-4000:] if c.isprintable() or c == "\n")
            # After each test: what ran is known even if the guest is ended.
            ElementTree.ElementTree(suite).write(results / f"verbs-{name}-cpp.xml", encoding="utf-8")
    return good


def python_tests(results, name, marks, deadline):
    """Writes results/verbs-NAME-python.xml; returns whether all went well."""
    left = deadline - time.monotonic()
    command = [sys.executable, "-m", "pytest", "tests/hardware", "-q", "-rs", "-p", "no:cacheprovider", "-m", marks]
    command += ["-o", "junit_family=xunit1", "--junitxml", str(results / f"verbs-{name}-python.xml")]
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, timeout=max(left, 1))
    except subprocess.TimeoutExpired:
        print(f"tests/hardware did not end within the {left:.0f} s that were left", flush=True)
        return False
    return done.returncode in (0, 5)  # 5: no test has these marks


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="CMake's folder with the C++ tests")
    parser.add_argument("--results", type=Path, required=True, help="folder for the JUnit files")
    parser.add_argument("--name", required=True, help="of the lane: rxe or siw")
    parser.add_argument("--filter", default="*Verbs*:*verbs*", help="which C++ tests, as --gtest_filter takes it")
    parser.add_argument("--marks", default="not long", help="which Python tests, as pytest's -m takes it")
    parser.add_argument("--limit", type=float, default=600, help="seconds for all of it")
    options = parser.parse_args()
    # The guest's rxe0 lies on a network of its own; the others reach each other, as hosts would.
    joined = sorted(path.name for path in Path("/sys/class/infiniband").glob("*[1-9]"))
    os.environ.setdefault("MXRDMA_TEST_DEVICES", ",".join(joined[:2]))
    deadline = time.monotonic() + options.limit
    options.results.mkdir(parents=True, exist_ok=True)
    good = cpp_tests(options.build.resolve(), options.filter, options.results, options.name, deadline)
    good = python_tests(options.results, options.name, options.marks, deadline) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
