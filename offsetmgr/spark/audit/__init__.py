"""What an offsets topic tells of the groups of a cluster, as functions from tables to tables, and the page about it.

`commits` reads the log's table, `expiry` forecasts, `lag` sets offsets against logs, `compare` sets two stores against
each other. Times are milliseconds since 1970; what is unknown is null.
"""
