"""Arrow rows as arrays: key codes, columns by position, arenas."""
