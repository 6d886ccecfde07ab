"""Adds up the JUnit files of all lanes and prints what ran, what failed and why something was skipped."""

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def count(path):
    """(passed, failed, skipped, reasons of skips) of one JUnit file."""
    passed = failed = 0
    reasons = Counter()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            failed += 1
        elif skipped is not None or case.get("status") in ("notrun", "disabled"):
            reasons[reason_of(case, skipped)] += 1
        else:
            passed += 1
    return passed, failed, sum(reasons.values()), reasons


def reason_of(case, skipped):
    """Why a test was skipped. CTest knows only that its output says so; GoogleTest gives the reason a line below that."""
    output = (case.findtext("system-out") or "").splitlines()
    for line, following in zip(output, output[1:]):
        if line.endswith(": Skipped") and following.strip():
            return following.strip()
    return (skipped.get("message") if skipped is not None else None) or "not run"


def over_queue_pairs(path):
    """How many tests passed that moved packets through RDMA devices, by the devices' own count."""
    number = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        bad = any(case.find(tag) is not None for tag in ("failure", "error", "skipped"))
        sent = [p.get("value") for p in case.iter("property") if p.get("name") == "rdma_packets"]
        number += not bad and any(int(value) > 0 for value in sent)
    return number


def main(folder):
    total = Counter()
    files = sorted(Path(folder).glob("*.xml"))
    if not files:
        print(f"no results in {folder}")
        return 1
    for path in files:
        passed, failed, skipped, reasons = count(path)
        print(f"{path.stem:16} {passed:5} passed {failed:4} failed {skipped:4} skipped")
        for reason, times in reasons.items():
            print(f"{'':16}   skipped {times}: {reason.splitlines()[0]}")
        total.update(passed=passed, failed=failed, skipped=skipped, verbs=over_queue_pairs(path))
    print(
        f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped; "
        f"{total['verbs']} tests ran over real queue pairs"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
