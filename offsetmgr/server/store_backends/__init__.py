"""Serves offset requests from a store, or from two stores while dual commit is on."""
