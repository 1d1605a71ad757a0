"""Mutation testing of the modules that decide or guard data: prints how many small faults in each of them tests find.

mutmut changes one expression of a function (a comparison, a constant, an argument) and runs the tests that call the
function. A mutant is killed if a test fails or exceeds its time limit; otherwise it survives. mutmut does not change
functions with decorators. The mutants of a module are the first ones in an order that depends only on their functions
and changes, so two commits can be compared, even if their tests are in other directories. Run both with the same
options: the tests of all chosen modules run together, and on a busy machine more tests exceed their time limits.
Each run installs mutmut into a temporary environment. It takes more than half an hour; scripts/test does not run it.

  scripts/mutation                       the working tree, 60 mutants of each module
  scripts/mutation COMMIT --sample 200   another commit, more mutants
  scripts/mutation --only period --show  the modules with "period" in their names, and the change of each survivor
  scripts/mutation --servers             the modules that tests with servers prove
  scripts/mutation --save FILE           writes the result of each mutant to a file, to compare two runs with diff
"""

import argparse
import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import venv
from difflib import unified_diff
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTMUT = "mutmut==3.8.1"
TABLE = {
    "test_shard_[cefr]* test_expiration|test_commit_checks test_shard_scenarios": "manager/"
    "shard manager/offset_table manager/commit_checks|manager/conditions manager/expiration",
    "test_plan_*|test_reverse_plan test_migration_[ajrv]* test_partition_map": "migration/plan",
    "test_*_evidence test_finalize_gates|test_phase_inference test_forward_copy|test_member_fence "
    "test_bounces|test_bounce_waits": "migration/evidence migration/phase_inference migration/ownership_history",
    "test_evaluation test_kafka_edits test_store_contract": "core/evaluation|stores/conditional_edit",
    "test_edits_in_memory|test_edit_plans|test_snapshot_edits|test_before_images test_undo_commands "
    "test_execute": "groups/edit_plan",
    "test_assignors": "zookeeper/groups/assignors",
    "test_period_*": "period/barrier period/schedule period/leader_decision",
    "test_record_formats test_kafka_records|test_record_formats test_avro_records|test_record_formats "
    "test_segment_offsets": "records/kafka records/kafka_fields records/avro records/avro_fields",
    "test_execute test_kafka_edits test_running_evidence": "groups/execute stores/conditional_edit",
    "test_migration_[ajrv]* test_plan_renewal test_fleet_migration test_old_migration_files "
    "test_files_that_cannot_be_written": "migration/journal migration/journaled_writer",
    "test_dual_rules test_dual_model test_dual_backend test_store_contract": "stores/dual_policy",
    "test_partition_producer test_fenced_log": "manager/log/kafka/partition_producer",
    "test_batch_audit* test_claims_of_a_log|test_claim_*|test_partition_follow": "manager/log/kafka/batch_audit",
    "test_lease test_shard_group_ownership_model": "manager/lease",
    "test_group_lock": "kafka/groups/group_lock kafka/groups/static_membership",
}
"""The names of test files, which may be in any directory, with the modules that they cover. Files with servers do not
count. After ``|`` is the name of the module, or of another test file, in other commits."""
SERVERS = {
    "test_group_lock test_kafka_group_lock|test_group_lock_and_consumers test_locks_of_many_commits": "kafka/groups/"
    "lock_membership kafka/groups/group_lock kafka/groups/static_membership",
}
"""The same for modules that tests with servers prove. Each mutant starts its own servers, so it takes much longer."""

PLUGIN = """
import hypothesis, os, pytest, _pytest.python
escape = _pytest.python._ascii_escaped_by_config  # it escapes ids again in each collection
_pytest.python._ascii_escaped_by_config = lambda value, config: escape(value, config).replace(chr(92), "/")
@pytest.hookimpl(trylast=True)
def pytest_configure():
    hypothesis.settings.register_profile("mutation", deadline=None, max_examples=30, derandomize=True, database=None)
    hypothesis.settings.load_profile("mutation")
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        del os.environ["MUTANT_UNDER_TEST"]  # processes that tests start cannot record which functions they call
"""
SETTINGS = {
    "source_paths": ["offsetmgr"],
    "also_copy": ["docs", "schemas", "scripts", "README.md"],
    "do_not_mutate_patterns": [r"raise [A-Z]", r"\"[^\"]* [^\"]* [^\"]*\"", r"\b(log|logger|_log)\."],  # texts
    "timeout_constant": 2.0,
    "timeout_multiplier": 5.0,
    "track_dependencies": False,
}
MARKED = re.compile(r"^pytestmark = .*\bpytest\.mark\.(servers|matrix|soak)\b", re.MULTILINE)
# A mutant also changes the runs of planted faults, so their tests do not count.
ARGUMENTS = ["-p", "mutation_profile", "-p", "no:cacheprovider", "-k", "not 25000 and not kraft and not planted_fault"]
SURVIVED = {0, 5, 33}  # mutmut's codes of a mutant with which every test passes, and of one that no test calls
LATE = {-9, -24, 24, 36, 152, 255}  # its codes of a mutant with which a test exceeds its time limit


def install(directory: Path) -> Path:
    """Installs mutmut into a new environment that also has the packages of the project's own. Returns the command."""
    venv.create(directory, with_pip=True)
    packages = next(directory.glob("lib/python*/site-packages"))
    (packages / "project.pth").write_text(f"{next(Path(sys.prefix).glob('lib/python*/site-packages'))}\n", "utf-8")
    (packages / "mutation_profile.py").write_text(PLUGIN, encoding="utf-8")
    subprocess.run([directory / "bin" / "python", "-m", "pip", "install", "--quiet", MUTMUT], check=True)
    return directory / "bin" / "mutmut"


def files_of(tree: Path, name: str, *, servers: bool) -> set[str]:
    """Returns the test files with a name of the table. Ends the program if there is none."""
    found = [path for one in name.split("|") for path in tree.glob(f"tests/**/{one}.py")]
    found = [path for path in found if servers or not MARKED.search(path.read_text(encoding="utf-8"))]
    return {str(path.relative_to(tree)) for path in found} or sys.exit(f"no test file has the name {name}")


def prepare(tree: Path, commit: str, only: list[str], *, servers: bool) -> dict[str, Path]:
    """Copies a commit (default: the working tree's tracked files) and configures mutmut. Returns the modules."""
    commit = commit or subprocess.check_output(["git", "stash", "create"], cwd=ROOT, text=True).strip() or "HEAD"
    archive = subprocess.check_output(["git", "archive", commit], cwd=ROOT)
    subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    modules, tests = {}, set()
    for patterns, names in (SERVERS if servers else TABLE).items():
        for name in [one for one in names.split() if any(part in one for part in only)]:
            found = [path for one in name.split("|") if (path := tree / "offsetmgr" / f"{one}.py").exists()]
            modules |= {name.split("|")[0]: path.relative_to(tree) for path in found[:1]}
            for one in patterns.split():
                tests |= files_of(tree, one, servers=servers)
    selected: dict[str, object] = {
        "only_mutate": list(map(str, modules.values())),
        "pytest_add_cli_args_test_selection": sorted(tests),
    }
    selected |= SETTINGS | ({"timeout_constant": 20.0, "process_isolation": "forkserver"} if servers else {})
    marks = "not matrix and not soak" if servers else "not servers and not matrix and not soak"
    selected["pytest_add_cli_args"] = [*ARGUMENTS, "-m", marks]
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


def mutants_of(tree: Path, module: Path, sample: int) -> dict[str, str]:
    """Returns a sample of a module's mutants: mutmut's name of each by its function and the changed lines."""
    functions: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse((tree / "mutants" / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions[node.name] = [ast.unparse(node.args), *ast.unparse(ast.Module(node.body, [])).splitlines()]
    found: dict[str, str] = {}
    for name in exit_codes(tree, module):
        function = (mutant := name.rpartition(".")[2]).partition("__mutmut_")[0]
        lines = unified_diff(functions[f"{function}__mutmut_orig"], functions[mutant], n=0, lineterm="")
        key = " ".join([function, *[line for line in lines if line[0] != "@"][2:]])
        while key in found:  # the function has the same line several times
            key += " again"
        found[key] = name
    return {key: found[key] for key in sorted(found, key=lambda key: random.Random(key).random())[:sample]}


def main() -> None:
    """Runs the mutants and prints the table."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("commit", nargs="?", default="")
    parser.add_argument("--sample", type=int, default=60, help="mutants of each module (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=60, help="time limit (default: %(default)s)")
    parser.add_argument("--jobs", default=str(os.cpu_count() or 1), help="processes (default: %(default)s)")
    parser.add_argument("--only", action="append", help="part of the modules' names; repeat it for more")
    parser.add_argument("--show", action="store_true", help="print the change of each survivor")
    parser.add_argument("--servers", action="store_true", help="the modules that tests with servers prove")
    parser.add_argument("--save", type=Path, help="write the result of each mutant to this file")
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        (tree := Path(name) / "tree").mkdir()
        modules = prepare(tree, options.commit, options.only or [""], servers=options.servers)
        mutmut = install(Path(name) / "venv")
        # A name that no mutant has: mutmut writes the mutants, runs the tests once without any, and stops.
        if "nothing matches" not in (output := run(mutmut, tree, end, "no-such-mutant")):
            sys.exit(output)
        samples = {module: mutants_of(tree, path, options.sample) for module, path in modules.items()}
        names = [one for sample in samples.values() for one in sample.values()]
        if "Running mutation testing" not in (output := run(mutmut, tree, end, "--max-children", options.jobs, *names)):
            sys.exit(output)
        print(f"{'module':45} {'mutants':>8} {'run':>5} {'killed':>7} {'late':>5} {'survived':>9} {'score':>6}")
        results: list[str] = []
        survivors: list[str] = []
        for module, sample in samples.items():
            codes = exit_codes(tree, modules[module])
            ran = {key: code for key, one in sample.items() if (code := codes[one]) is not None}
            left = [key for key, code in ran.items() if code in SURVIVED]
            late = [key for key, code in ran.items() if code in LATE]
            counts = f"{len(codes):8} {len(ran):5} {len(ran) - len(left):7} {len(late):5} {len(left):9}"
            print(f"{module:45} {counts} {100 * (len(ran) - len(left)) // max(len(ran), 1):4} %")
            results += [f"{module} {key}: {'survived' if key in left else 'killed'}\n" for key in ran]
            survivors += sorted(sample[key] for key in left)
        if options.save:
            options.save.write_text("".join(sorted(results)), encoding="utf-8")
        for one in survivors if options.show else []:
            subprocess.run([mutmut, "show", one], cwd=tree, check=False)


if __name__ == "__main__":
    main()
