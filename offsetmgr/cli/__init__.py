"""The command line: one module for each command or group of commands, and modules for the options and the output that
commands share."""
