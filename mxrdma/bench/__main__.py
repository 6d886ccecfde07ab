from mxrdma.bench.cli import main

main()
