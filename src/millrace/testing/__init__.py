"""Tools for testing joins: oracles, hypothesis strategies, injected faults, and constructed hash collisions."""
