"""What a run leaves for people and programs to read."""

from train.monitor.console import Console, configure_logging
from train.monitor.environment import describe
from train.monitor.runlog import RunLog, finite

__all__ = ["Console", "RunLog", "configure_logging", "describe", "finite"]
