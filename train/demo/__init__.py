"""`python -m train demo`: the whole way, from a raw corpus to a resumed run, on real text.

Every step is a command that a user would type, printed before it runs. The folder it works in is
only ever changed if it is empty or an earlier demo's.
"""

from train.demo.tour import run

__all__ = ["run"]
