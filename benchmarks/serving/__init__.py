"""Our service against plain ``vllm serve``: what the way through Ray Serve, capture and the rest costs a customer.

::

    plain        the plain server's process
    servers      both servers: start, wait, stop, CPU time
    learning     the learner of our service: what it did, and how to hold it still
    load         Workload ─► one Block of load on one server
    statistics   rounds of blocks ─► paired ratios and differences, with intervals
    report       rows, marks, table
"""
