"""Exit codes by which a rank tells its launcher why it ended on purpose."""

# The job goes on with another membership: start again after the next rendezvous.
REFORM = 75
# This node was ordered to leave: do not come back.
LEFT = 76
# No restart can help, for example when no valid checkpoint is left.
HOPELESS = 77
