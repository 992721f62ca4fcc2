"""A function of the user's that yields dicts."""
