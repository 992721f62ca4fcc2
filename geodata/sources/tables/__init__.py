"""Files that each are a table of typed columns: Parquet and Arrow IPC."""
