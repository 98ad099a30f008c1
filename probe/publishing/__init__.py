"""The dashboards in the tracking backends, kept up to date by a process beside the training.

Only rank 0 tracks, and a training worker loads neither pandas nor plotly. What needs figures, or the rows of all
ranks, is made by a child process of rank 0, the *publisher*: it reads the run directory and writes what it has made as
lines of JSON (:mod:`probe.publishing.messages`), which a thread of the session hands on to ``Tracking``
(:mod:`probe.publishing.publisher`). A publisher that fails, hangs or is slow is an incident, and nothing else.
"""
