"""Millrace beside what else joins a stream with a table: every peer in one run, each at its best, on the same batches."""
