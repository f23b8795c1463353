"""Measurements: what the engine does, beside what else there is, from one command each."""
