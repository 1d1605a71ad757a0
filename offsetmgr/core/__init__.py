"""Values, errors and protocols that every other package uses. No module here connects to a server."""
