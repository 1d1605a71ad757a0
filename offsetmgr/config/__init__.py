"""Connection settings: the configuration file, ``.properties`` files, and Java's names of settings."""
