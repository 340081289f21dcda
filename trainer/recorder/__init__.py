"""How a rank writes down its steps: marks and one record a step, into its ring and nowhere else."""

from tailwatch.trainer.recorder.recorder import StepRecorder

__all__ = ["StepRecorder"]
