"""Plants 40 faults in the modules that fence the log, one at a time, and prints the test that finds each of them. Ends
with 1 if no test finds a fault, or if the text of a fault is not exactly once in its module.

`scripts/mutation` changes random expressions. These faults are the mistakes of a programmer: a step or a check that is
missing, a wrong comparison, a wrong meaning of an error. All tests are tests of `scripts/test --fast`.

  .venv/bin/python scripts/mutants.py              all faults
  .venv/bin/python scripts/mutants.py lease fence  only faults with one of these texts in their module or name
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "manager/log/kafka/writer": "crash/test_fenced_log",
    "manager/log/kafka/partition_producer": "manager/test_partition_producer",
    "manager/log/kafka/batch_audit": "manager/test_batch_audit manager/test_claims_of_a_log",
    "manager/lease": "manager/test_lease crash/test_shard_group_ownership_model",
}
"""The tests that have to find the faults of each module."""
FAULTS = {
    "manager/log/kafka/writer": {
        "step 1 of a later claim is unconditional": ("self._epochs.get(number) for number in partitions}",
            "None for number in partitions}"),
        "another producer id is accepted": ("found.id != before.id", "found.id < 0"),
        "step 3 is missing": ("            await self._fence_other_ids(deadline)\n", ""),
        "step 3 fences without a comparison": ("        await self._new_epochs(others, deadline)\n", ""),
        "a fence has the last epoch of a producer": ("32_767", "32_766"),
        "step 4 does not read back": ("        await self._compare_tokens(tokens, _ends(producers), deadline)\n", ""),
        "step 4 accepts any claim": ("- 1) == left[number]", "- 1)"),
        "step 5 is missing": ("            await self._new_epochs(self._unlisted, deadline)\n", ""),
        "a claim may be at any offset": ("epoch, expected.get(number), older_ids", "epoch, None, older_ids"),
        "an append returns the next offset": ("= producer.next_offset - 1", "= producer.next_offset"),
    },
    "manager/log/kafka/partition_producer": {
        "a former leader rejects before the append": ("        ErrorCode.NOT_LEADER_OR_FOLLOWER,\n", ""),
        "an uncertain batch becomes certain": ("self._uncertain |= code", "self._uncertain = code"),
        "a rejected resend decides": ("if self._uncertain or code", "if code"),
        "an unexpected sequence is a rejection": ("if self._uncertain or code in _STATE_CODES:", "if self._uncertain:"),
        "a lost response is a rejection": ("        self._uncertain = True\n", ""),
        "a batch is uncertain because an earlier one was": ("self._uncertain = None, False", "_ = None, False"),
        "an older producer id fences": (" - self.older_ids", ""),
        "lost state of the producer is accepted": (" or (self._listed and own is None)", ""),
        "an acknowledgement may have any offset": ("and first_offset != self.next_offset", "and first_offset < 0"),
        "the producer goes on after an unknown outcome": ("error, Fenced | OutcomeUnknown", "error, Fenced"),
    },
    "manager/log/kafka/batch_audit": {
        "data of an earlier epoch is valid": ("if producer == owner:", "if producer.id == owner.id:"),
        "a late claim is valid": ("producer.epoch < owner.epoch", "producer.epoch < 0"),
        "a claim of the same epoch is invalid": ("producer.epoch < owner.epoch", "producer.epoch <= owner.epoch"),
        "a claim with an earlier producer id is valid": ("!= owner.id and producer.id in known", "< 0"),
        "a fence may have any epoch": ("producer.epoch == FENCE_EPOCH and special", "special"),
        "a batch with a fence and data is valid": ("special and all(", "special and any("),
        "a claim is read again only once": ("recheck applies.\"\"\"\n        self._rechecked = False",
            "recheck applies.\"\"\""),
        "a batch behind a gap is invalid": ("self.state.gap and not self._rechecked", "False"),
        "a claim that was removed is still known": ("if not present:", "if present:"),
        "an undecided batch stays applied": ("self._undecided <= self.state.producer_ids", "True"),
    },
    "manager/lease": {
        "the lease has no margin": ("= MAX_LEASE_S * MARGIN", "= MAX_LEASE_S"),
        "all clocks run at the same rate": ("MARGIN: Final = 0.8", "MARGIN: Final = 1.0"),
        "the next owner waits for a lease of its own clock": ("TAKEOVER_WAIT_S: Final = MAX_LEASE_S",
            "TAKEOVER_WAIT_S: Final = LEASE_DURATION_S"),
        "the lease is twice as long": ("MAX_LEASE_S: Final = 1.5", "MAX_LEASE_S: Final = 3.0"),
        "a lease is valid before the first proof": ("clock\n        self._until = float(\"-inf\")",
            "clock\n        self._until = float(\"inf\")"),
        "a proof counts from its response": ("sent + LEASE_DURATION_S", "self._clock() + LEASE_DURATION_S"),
        "an earlier proof shortens the lease": ("max(self._until, sent + LEASE_DURATION_S)",
            "sent + LEASE_DURATION_S"),
        "the end of the membership keeps the lease": ("has ended.\"\"\"\n        self._until = float(\"-inf\")",
            "has ended.\"\"\""),
        "a lease is valid at its end": ("self._clock() < self._until", "self._clock() <= self._until"),
        "the remaining time is negative": ("max(self._until - self._clock(), 0.0)", "self._until - self._clock()"),
    },
}  # fmt: skip
"""For each module and fault, a text of the module and its replacement."""


def planted(source: str, text: str, replacement: str) -> str:
    """Returns the source of a module with a fault. Raises `ValueError` if the text is not exactly once in it."""
    if source.count(text) != 1:
        raise ValueError(f"the text is {source.count(text)} times in the module: {text!r}")
    return source.replace(text, replacement)


def failed_test(directory: Path, module: str) -> str | None:
    """Runs the tests of a module with the package in a directory. Returns the first test that fails; None if all tests
    pass."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("OFFSETMGR_")}
    own |= {"PYTHONPATH": str(directory), "HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "hypothesis")}
    files = [f"tests/{name}.py" for name in TESTS[module].split()]
    # With -P, Python does not import the package from the present directory.
    command = [sys.executable, "-P", "-B", "-m", "pytest", "-x", "-q", "--tb=no", "--hypothesis-seed=0", *files]
    # A fault of the real code also changes the runs of faulty copies. That does not count.
    command += ["-p", "no:cacheprovider", "-m", "not slow", "-k", "not planted_fault"]
    run = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    found = re.search(r"^FAILED (.*?)(?: - |$)", run.stdout, re.MULTILINE)
    if run.returncode not in (0, 1) or bool(run.returncode) != bool(found):
        sys.exit(f"the tests of {module} did not run: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return found[1] if found else None


def main() -> None:
    """Plants the faults and prints the result of each of them."""
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        shutil.copytree(ROOT / "offsetmgr", Path(name) / "offsetmgr")
        for module, faults in FAULTS.items():
            chosen = [f for f in faults if not sys.argv[1:] or any(one in f"{module} {f}" for one in sys.argv[1:])]
            if chosen and (failed := failed_test(Path(name), module)):
                sys.exit(f"{failed} fails without a fault")
            path = Path(name) / "offsetmgr" / f"{module}.py"
            source = path.read_text("utf-8")
            for fault in chosen:
                path.write_text(planted(source, *faults[fault]), "utf-8")
                failed = failed_test(Path(name), module)
                survivors += failed is None
                print(f"{module}: {fault}: {failed or 'SURVIVED'}", flush=True)
            path.write_text(source, "utf-8")
    sys.exit(f"{survivors} faults survived" if survivors else 0)


if __name__ == "__main__":
    main()
