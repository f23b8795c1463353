"""The command line: ``millrace demo | generate | master | join | algorithms``."""
