"""Scripts for people who work on this source tree; docs/development.md introduces them."""
