"""scripts/mutants.py plants faults whose texts are in the present code."""

import mutants
import pytest

FAULTS = [(module, *fault) for module, faults in mutants.FAULTS.items() for fault in faults.values()]


def test_there_are_ten_faults_of_each_module() -> None:
    assert {module: len(faults) for module, faults in mutants.FAULTS.items()} == dict.fromkeys(mutants.TESTS, 10)


@pytest.mark.parametrize(("module", "text", "replacement"), FAULTS)
def test_the_text_of_a_fault_is_once_in_its_module(module: str, text: str, replacement: str) -> None:
    faulty = mutants.planted((mutants.ROOT / "offsetmgr" / f"{module}.py").read_text("utf-8"), text, replacement)
    compile(faulty, module, "exec")


@pytest.mark.parametrize("source", ["a", "a b b"])
def test_a_text_that_is_not_exactly_once_in_its_module_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match="times in the module: 'b'"):
        mutants.planted(source, "b", "c")
