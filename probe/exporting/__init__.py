"""A run in other tools' formats: Parquet and CSV tables, and a Perfetto trace. None holds the run in memory."""
