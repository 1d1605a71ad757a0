"""Kafka's own protocol, for what no client library offers: group membership as a lock, and bulk offset requests.

Requests and responses are kio's (generated from Kafka's schemas); this package is its sole user.  Everything in
here is asyncio; `runner` is the one place with a thread, so that synchronous callers can use the rest.  Importing
this package costs nothing: kio, which takes about 0.1 s to import, is loaded by the modules that need it.
"""
