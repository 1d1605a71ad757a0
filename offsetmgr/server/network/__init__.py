"""Sockets, frames and the pipeline of requests. Nothing here knows what a request means."""
