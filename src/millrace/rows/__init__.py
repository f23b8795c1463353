"""Code that stores Arrow rows in arrays, finds them by key, writes output batches, and counts the keys of streams."""
