"""mxrdma-launch: starts the scheduler, the servers and the workers of a job on this host and ends them together.

`cli` reads the command line, `plan` says which processes a job has, `supervisor` runs them, `output` labels their lines,
`processes` finds and ends what they left behind, `guard` does the same after the launcher itself was killed.
"""
