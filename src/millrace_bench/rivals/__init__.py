"""Compare Millrace with other engines that join a stream with a table: all in one run, on the same batches."""
