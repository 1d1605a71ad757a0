"""An audit of the groups in an offsets topic: functions from tables to tables, and a report page.

`commits` reads the log's table, `expiry` forecasts, `lag` compares offsets with logs, `compare` compares two stores.
Times are milliseconds since 1970; unknown values are null.
"""
