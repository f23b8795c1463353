"""Arrow rows as arrays: key codes, columns by position, arenas, rows by key, output batches, stream statistics."""
