"""mxrdma-doctor: what this host offers for RDMA, what is missing, and how to mend it."""
