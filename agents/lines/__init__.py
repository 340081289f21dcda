"""Rules for the lines of kernel, NCCL, EFA and torchrun, shared by both agents."""
