"""The APIs that the listener answers itself, one module for each kind of request; `table` lists them.

A handler checks the client's permissions, calls the backend, and encodes the response. A handler keeps no state about
groups and does not access the connections of other clients.
"""
