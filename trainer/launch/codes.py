"""Exit codes by which a rank tells its launcher why it ended on purpose."""

# The job goes on with another membership: start again after the next rendezvous.
REFORM = 75
# This node was ordered to leave: do not come back.
LEFT = 76
