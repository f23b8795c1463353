"""Tools for testing joins: oracle, strategies, fakes, constructed hash collisions."""
