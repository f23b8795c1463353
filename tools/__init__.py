"""Scripts for those who work on the tree; docs/development.md introduces them."""
