"""The claims of both papers (SAO, arXiv 2607.07508; ASymPO, arXiv 2606.03070), tried on a policy of 0.1 million
parameters with the service's own trainer.

::

    tasks/       what is asked, and when an answer is right
    policy       a tiny Llama with a supervised warm start, rebuilt by the command
    sampler      samples many episodes at once, each from its own version of the weights
    simulator    the last 24 versions, a lag for each trajectory ─► Trajectory
    training     simulator ─► Trainer.update ─► one row
    runs         the rows of all seeds, appended to a file that a later run goes on from
    statistics   collapse step, intervals, claims
    stability, ablations, drift, asympo, throughput    one file an experiment
"""
