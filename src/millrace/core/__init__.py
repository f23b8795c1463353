"""What every layer shares: errors, sizes, the budget, the join's specification, the operator's life cycle, files."""
