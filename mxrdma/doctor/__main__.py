from mxrdma.doctor.cli import main

main()
