"""Files that are written whole or not at all, locks between processes, and what killed processes leave behind."""
