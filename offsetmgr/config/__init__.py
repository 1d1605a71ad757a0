"""How to connect: the configuration file, .properties files and the Java names of settings."""
