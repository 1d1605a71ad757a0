"""Every public class and function has an example in its docstring, and the doctests pass.

`tests/library/test_docstring_examples_on_servers.py` runs the examples that need servers.
"""

import doctest
import inspect
import re
from typing import Any

import pytest
from docstring_examples import PACKAGES, blocks, docstrings, doctests, public_objects

import offsetmgr
from offsetmgr import errors

PUBLIC = {f"{package}.{name}": found for package in PACKAGES for name, found in public_objects(package).items()}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_class_and_function_has_an_example(name: str) -> None:
    assert blocks(PUBLIC[name]) or doctests(PUBLIC[name])


@pytest.mark.parametrize("name", [name for name, found in PUBLIC.items() if doctests(found)])
def test_the_doctests_pass(name: str) -> None:
    found: Any = PUBLIC[name]
    module = vars(inspect.getmodule(found))
    public = {one: getattr(offsetmgr, one) for one in vars(offsetmgr)["__all__"]}
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    parser = doctest.DocTestParser()
    for text in docstrings(found):
        runner.run(parser.get_doctest(text, {**public, **module}, name, None, 0))
    assert runner.summarize(verbose=False).failed == 0


def test_every_public_error_has_a_docstring_of_its_own() -> None:
    found = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.OffsetMgrError)]
    assert len(found) > 30
    assert [one.__name__ for one in found if not (one.__doc__ or "").strip()] == []


ENTRY_POINTS = (
    "offsetmgr.OffsetAdmin",
    "offsetmgr.Migration",
    "offsetmgr.PlannedEdit",
    "offsetmgr.OffsetManager",
    "offsetmgr.spark.OffsetCommitter",
    "offsetmgr.spark.BatchCommitter",
)


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_every_method_of_the_entry_points_says_what_it_does_and_raises(name: str) -> None:
    """A method that contacts a server or checks an argument names its errors."""
    exempt = {"close", "committed_first"}
    methods = {
        method: inspect.getdoc(one) or ""
        for method, one in vars(PUBLIC[name]).items()
        if not method.startswith("_") and method not in exempt and (callable(one) or isinstance(one, classmethod))
        if not method.startswith("onQuery")  # Spark calls these methods
    }
    assert [method for method, text in methods.items() if not re.search(r"[Rr]aises\s", text)] == []
