"""`offsetmgr manager serve`: the configuration and the process that runs the servers."""
