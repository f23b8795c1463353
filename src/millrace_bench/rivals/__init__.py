"""Millrace beside what else joins a stream with a table: all in one run, each at its best, same batches."""
