"""Configuration: the configuration file, ``.properties`` files, and the translation of Java client settings."""
