"""The APIs that the listener answers itself, one module per kind of request; `table` lists them.

A handler checks the client's permissions, calls the backend, and encodes the response. It keeps no state of groups and
does not know the other connections.
"""
