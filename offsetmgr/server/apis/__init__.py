"""The offsets endpoint's own answers, one module per kind of question; `table` puts them together.

A handler checks what the client may do, asks the backend, and puts the answer into Kafka's words.  It keeps no state of
groups and knows nothing of who else is connected.
"""
