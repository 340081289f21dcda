"""Kubelet's PodResources API: who holds which device of this node."""
