"""The command line: ``millrace generate | master | join | run | tune | algorithms``."""
