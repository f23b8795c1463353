"""Measure Millrace, compare it with other engines, repeat the experiments of the papers, and show demos."""
