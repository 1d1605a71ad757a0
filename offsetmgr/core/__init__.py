"""Values, errors and protocols that every other package uses. Nothing here performs I/O against a server."""
