"""NVML for the collectors: one library a process, calls that say which device they hang on."""
