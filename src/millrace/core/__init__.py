"""Code that all layers use: errors, sizes, the budget, a join's specification, an operator's life cycle, files."""
