"""The agents: one a node that takes what ranks leave behind, one a job that understands it."""
