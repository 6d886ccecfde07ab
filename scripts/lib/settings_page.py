"""Writes docs/settings.md from the table in mxrdma/config.py; a test holds the two together."""

import sys
from pathlib import Path

from mxrdma import config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
HEAD = """# Settings

Each setting is an environment variable. `mxrdma-launch` takes them from a YAML file too (`--config file.yaml`, names in
lower case without `MXRDMA_`, as in [configs/](../configs)); the environment wins over the file, `--env NAME=VALUE` over the
environment, and an option such as `--fabric` over all. Where the table names a second variable, MXNet's own name works as
well; if both are set they must agree. The launcher sets role, rank, address, numbers and token itself.

Durations are in seconds. Sizes may end in K, M or G. Settings marked "scheduler's counts" are told to all nodes by the
scheduler; what other nodes have is not looked at.

"""


def page():
    """The page's text."""
    return HEAD + config.table()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.exit(0)
