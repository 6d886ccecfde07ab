"""`mxrdma-bench`: what the stores cost and what the machine allows, measured in one run."""
