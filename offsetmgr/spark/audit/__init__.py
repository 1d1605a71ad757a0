"""Audits the groups of an offsets topic: computes tables from the topic's records, and a report page.

`commits` computes the newest offsets and each group's history of commits, `expiry` forecasts when offsets expire, `lag`
computes the lag, and `compare` compares the topic with another store. Times are milliseconds since 1970; unknown values
are null.
"""
