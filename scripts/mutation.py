"""Mutation testing of the modules that decide without I/O: prints how many small faults in each of them the tests find.

mutmut changes one expression of a function (a comparison, a constant, an argument) and runs the tests that call the
function. A mutant is killed if a test fails or exceeds its time limit; otherwise it survives. The mutants of a module
are a sample with a fixed seed, so that two commits can be compared. mutmut does not change functions with decorators.
Each run installs mutmut into a temporary environment. A run takes about 15 minutes, so scripts/test does not run it.

  scripts/mutation                       the working tree, 60 mutants of each module
  scripts/mutation COMMIT --sample 200   another commit, more mutants
  scripts/mutation --only period --show  the modules with "period" in their names, and the change of each survivor
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTMUT = "mutmut==3.8.1"
TABLE = {
    "unit/test_shard_[cefr]* unit/test_expiration unit/test_commit_checks stateful/test_shard_scenarios": "manager/"
    "shard manager/offset_table manager/commit_checks|manager/conditions manager/expiration",
    "unit/test_reverse_plan unit/test_plan_* unit/test_migration_* unit/test_partition_map": "migration/plan",
    "unit/test_*_evidence unit/test_phase_inference unit/test_member_fence unit/test_bounce_waits": "migration/"
    "evidence migration/phase_inference migration/ownership_history",
    "unit/test_evaluation unit/test_compared_writes contract/test_snap*": "core/evaluation|stores/conditional_edit",
    "unit/test_edit_plans unit/test_snapshot_edits unit/test_before_images unit/test_execute": "groups/edit_plan",
    "unit/test_assignors": "zookeeper/groups/assignors/base "
    "zookeeper/groups/assignors/range_assignor zookeeper/groups/assignors/round_robin_assignor "
    "zookeeper/groups/assignors/clustered_assignor",
    "unit/test_period_* stateful/test_period_model": "period/barrier period/schedule period/leader_decision",
    "unit/test_kafka_records unit/test_avro_records unit/test_record_formats unit/test_segment_offsets": "records/"
    "kafka records/kafka_fields records/avro records/avro_fields",
}
"""The test files with the modules that they cover. The name after ``|`` is that of the module in older commits."""

PLUGIN = """
import hypothesis, pytest, _pytest.python
escape = _pytest.python._ascii_escaped_by_config  # it escapes ids again in each collection
_pytest.python._ascii_escaped_by_config = lambda value, config: escape(value, config).replace(chr(92), "/")
@pytest.hookimpl(trylast=True)
def pytest_configure():
    hypothesis.settings.register_profile("mutation", deadline=None, max_examples=30, derandomize=True, database=None)
    hypothesis.settings.load_profile("mutation")
"""
SETTINGS = {
    "source_paths": ["offsetmgr"],
    "also_copy": ["docs", "schemas", "scripts", "README.md"],
    "do_not_mutate_patterns": [r"raise [A-Z]", r"\"[^\"]* [^\"]* [^\"]*\"", r"\b(log|logger|_log)\."],  # texts
    "pytest_add_cli_args": ["-p", "mutation_profile", "-p", "no:cacheprovider", "-k", "not 25000"],
    "timeout_constant": 2.0,
    "timeout_multiplier": 5.0,
    "track_dependencies": False,
}
SURVIVED = {0, 5, 33}  # mutmut's codes of a mutant with which every test passes, and of one that no test calls


def install(directory: Path) -> Path:
    """Installs mutmut into a new environment that also has the packages of the project's own. Returns the command."""
    venv.create(directory, with_pip=True)
    packages = next(directory.glob("lib/python*/site-packages"))
    (packages / "project.pth").write_text(f"{next(Path(sys.prefix).glob('lib/python*/site-packages'))}\n", "utf-8")
    (packages / "mutation_profile.py").write_text(PLUGIN, encoding="utf-8")
    subprocess.run([directory / "bin" / "python", "-m", "pip", "install", "--quiet", MUTMUT], check=True)
    return directory / "bin" / "mutmut"


def prepare(tree: Path, commit: str, only: str) -> dict[str, Path]:
    """Copies a commit (default: the working tree's tracked files) and configures mutmut. Returns the modules."""
    commit = commit or subprocess.check_output(["git", "stash", "create"], cwd=ROOT, text=True).strip() or "HEAD"
    archive = subprocess.check_output(["git", "archive", commit], cwd=ROOT)
    subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    modules, tests = {}, set()
    for patterns, names in TABLE.items():
        for name in [one for one in names.split() if only in one]:
            found = [path for one in name.split("|") if (path := tree / "offsetmgr" / f"{one}.py").exists()]
            modules |= {name.split("|")[0]: path.relative_to(tree) for path in found[:1]}
            tests |= {str(path.relative_to(tree)) for one in patterns.split() for path in tree.glob(f"tests/{one}.py")}
    selected: dict[str, object] = {
        "only_mutate": list(map(str, modules.values())),
        "pytest_add_cli_args_test_selection": sorted(tests),
    }
    selected |= SETTINGS
    with (tree / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.writelines(["\n[tool.mutmut]\n", *(f"{key} = {json.dumps(value)}\n" for key, value in selected.items())])
    return modules


def run(mutmut: Path, tree: Path, end: float, *arguments: str) -> str:
    """Runs mutmut in the copied tree and returns its output. Interrupts it at the time ``end``."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("PY")} | {"PYTHONHASHSEED": "0"}
    with (tree / "mutmut.log").open("w") as log:
        with subprocess.Popen([mutmut, "run", *arguments], cwd=tree, env=own, stdout=log, stderr=log) as process:
            try:
                process.wait(max(end - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
        return Path(log.name).read_text(encoding="utf-8", errors="replace")


def exit_codes(tree: Path, module: Path) -> dict[str, int | None]:
    """The exit codes of all mutants of a module; None for a mutant that was not run."""
    return json.loads((tree / f"mutants/{module}.meta").read_text(encoding="utf-8"))["exit_code_by_key"]


def main() -> None:
    """Runs the mutants and prints the table."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("commit", nargs="?", default="")
    parser.add_argument("--sample", type=int, default=60, help="mutants of each module (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=60, help="time limit (default: %(default)s)")
    parser.add_argument("--jobs", default=str(os.cpu_count() or 1), help="processes (default: %(default)s)")
    parser.add_argument("--only", default="", help="a part of the modules' names")
    parser.add_argument("--show", action="store_true", help="print the change of each survivor")
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        (tree := Path(name) / "tree").mkdir()
        mutmut, modules = install(Path(name) / "venv"), prepare(tree, options.commit, options.only)
        # A name that no mutant has: mutmut writes the mutants, runs the tests once without any, and stops.
        if "nothing matches" not in (output := run(mutmut, tree, end, "no-such-mutant")):
            sys.exit(output)
        samples = {}
        for module, path in modules.items():
            names = sorted(exit_codes(tree, path))
            samples[module] = random.Random(f"1 {module}").sample(names, min(options.sample, len(names)))
        names = [one for sample in samples.values() for one in sample]
        if "Running mutation testing" not in (output := run(mutmut, tree, end, "--max-children", options.jobs, *names)):
            sys.exit(output)
        print(f"{'module':45} {'mutants':>8} {'run':>5} {'killed':>7} {'survived':>9} {'score':>6}")
        survivors = []
        for module, sample in samples.items():
            codes = exit_codes(tree, modules[module])
            ran = sum(codes[one] is not None for one in sample)
            left = sorted(one for one in sample if codes[one] in SURVIVED)
            score = 100 * (ran - len(left)) // max(ran, 1)
            print(f"{module:45} {len(codes):8} {ran:5} {ran - len(left):7} {len(left):9} {score:4} %")
            survivors += left
        for one in survivors if options.show else []:
            subprocess.run([mutmut, "show", one], cwd=tree, check=False)


if __name__ == "__main__":
    main()
