"""Test support for authors of stores: the contract of `OffsetStore` as tests, a store in memory, and a store that fails
on request.

The package imports each public name on first use, because only the contract needs pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.core import lazy_exports

if TYPE_CHECKING:
    from offsetmgr.testing.faulty_store import Fault as Fault
    from offsetmgr.testing.faulty_store import FaultyStore as FaultyStore
    from offsetmgr.testing.memory import MemoryStore as MemoryStore
    from offsetmgr.testing.store_contract import StoreContract as StoreContract

if not TYPE_CHECKING:  # a type checker would accept every name of a module that defines __getattr__
    __all__, __getattr__, __dir__ = lazy_exports(__name__)
