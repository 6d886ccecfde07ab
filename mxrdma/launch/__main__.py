"""python -m mxrdma.launch: the same as mxrdma-launch."""

from mxrdma.launch.cli import main

main()
