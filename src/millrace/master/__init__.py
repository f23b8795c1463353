"""Master data on disk: its layout, how it is built and opened, read in cycles, and what reading costs."""
