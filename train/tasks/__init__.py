"""What a model is taught, and how it is judged: next tokens, masked tokens, classes of images."""

from train.tasks.base import Batch, Task, make_task

__all__ = ["Batch", "Task", "make_task"]
