"""Semi-stream joins: one loop; policies for cache, access and expiry; the table of named algorithms."""
