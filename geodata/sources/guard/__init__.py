"""Reading that may end its process, done in another one."""
