"""Scripts for developers of Millrace; docs/development.md introduces them."""
