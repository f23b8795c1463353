"""Measure the engine, beside other engines and beside the papers, with one command each."""
