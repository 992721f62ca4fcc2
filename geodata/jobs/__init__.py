"""One job a module: plan → map → commit, as one function that is the Python API too."""
