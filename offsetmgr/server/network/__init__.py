"""Sockets, frames and the pipeline of requests, independent of the requests' content."""
