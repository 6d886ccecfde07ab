"""Every call of libibverbs and librdmacm has its result looked at: read from the sources."""

import re
from pathlib import Path

import pytest

VERBS = Path(__file__).parents[2] / "cpp" / "fabric" / "verbs"
# They return nothing.
VOID = {"free_device_list", "ack_cq_events", "ack_async_event", "destroy_event_channel"}
# Inline functions of the headers, which go through a context's own table.
INLINE = ("ibv_post_send", "ibv_post_srq_recv", "ibv_poll_cq", "ibv_req_notify_cq")


def function_names():
    names = re.findall(r"decltype\(&::\w+\)\s+(\w+) = nullptr", (VERBS / "library.h").read_text())
    assert len(names) > 60, "the table of functions was not found"
    return names


def without_comments(text):
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    return re.sub(r"//[^\n]*", "", text)


def calls(text):
    """(name, whether the result is used) of each call in C++ text."""
    text = without_comments(text)
    through_table = r"(?:[\w\[\]]+(?:\(\))?(?:\.|->))*(?:library\w*(?:\(\)|\.value\(\))?|cm|found\.value\(\))(?:\.|->)"
    pattern = rf"(?:{through_table}(?:cm\.)?({'|'.join(map(re.escape, function_names()))})|({'|'.join(INLINE)}))\s*\("
    for match in re.finditer(pattern, text):
        before = text[: match.start()].rstrip()
        # Nothing in front of it: the call is the statement.
        alone = before == "" or before[-1] in ";{}:" or re.search(r"\b(else|do)$", before) is not None
        if before.endswith(")"):  # behind `if (...)`, or a cast
            opening, depth = len(before) - 1, 0
            while True:
                depth += {")": 1, "(": -1}.get(before[opening], 0)
                if depth == 0:
                    break
                opening -= 1
            alone = re.search(r"\b(if|for|while|switch)\s*$", before[:opening]) is not None
        yield match.group(1) or match.group(2), not alone


def test_every_result_is_looked_at():
    found, ignored = 0, []
    for path in sorted(VERBS.glob("*.cc")) + sorted(VERBS.glob("*.h")):
        for name, used in calls(path.read_text()):
            found += 1
            if not used and name not in VOID:
                ignored.append(f"{path.name}: {name}")
    assert found > 40, "the calls were not found"
    assert not ignored, ignored


@pytest.mark.parametrize(
    "text, used",
    [
        ("const int error = library_.modify_qp(a, b, c);", True),
        ("if (library_.cm.listen(id, 1) != 0) return;", True),
        ("return cm.bind_addr(id, x);", True),
        ("x; library_.modify_qp(a, b, c);", False),
        ("if (a) library_.modify_qp(a, b, c);", False),
        ("else context_->library().modify_qp(a, b, c);", False),
        ("{ ibv_post_send(a, b, c); }", False),
        ("while (ibv_poll_cq(a, 1, b) > 0) {}", True),
        ("Handle<ibv_pd>(library_.alloc_pd(device), f)", True),
    ],
)
def test_the_reader_itself(text, used):
    assert [one for _, one in calls(text)] == [used]
