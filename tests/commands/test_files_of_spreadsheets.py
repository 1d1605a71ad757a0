"""CSV as spreadsheets and shells of other systems save it: each form is read, or the error names the trouble."""

import json
from pathlib import Path

import pytest
from in_process import command, rows

CSV = "shop,orders,0,5\nshop,orders,1,7\nmüller,orders,0,12\n"
HEADER = "group,topic,partition,offset\n"
WAVES = "group,wave,owner\nbilling,2,billing team\naudit,1,\n"


def semicolons(text: str) -> str:
    return text.replace(",", ";").replace("\n", "\r\n")


FORMS = {
    "UTF-16 of Windows": CSV.replace("\n", "\r\n").encode("utf-16"),
    "UTF-16, big endian": b"\xfe\xff" + CSV.encode("utf-16-be"),
    "UTF-16 without a byte order mark": CSV.encode("utf-16-le"),
    "Excel's Unicode text": (HEADER + CSV).replace(",", "\t").replace("\n", "\r\n").encode("utf-16"),
    "CR alone": CSV.replace("\n", "\r").encode(),
    "semicolons": semicolons(HEADER + CSV).encode("utf-8-sig"),
    "semicolons without a header": semicolons(CSV).encode("utf-8-sig"),
    "a first line with the separator": ("sep=;\r\n" + semicolons(HEADER + CSV)).encode("utf-8-sig"),
    "empty cells in the first line": (";;;\r\n" + semicolons(HEADER + CSV)).encode("utf-8-sig"),
    "empty cells before the separator": (";;;\r\nsep=;\r\n" + semicolons(CSV)).encode(),
    "a first line with a comma as separator": ("SEP=,\r\n" + HEADER + CSV).encode(),
    "empty cells in the last lines": (HEADER + CSV + ",,,\n,,,\n").encode(),
    "empty cells in the last line, which does not end": (CSV + ",,,").encode(),
    "empty cells in each line": "".join(f"{line},,\n" for line in (HEADER + CSV).splitlines()).encode(),
    "empty cells between semicolons": (semicolons(CSV) + ";;;\r\n").encode(),
}


EMPTY_ROWS = {
    "empty cells in the first line": "skipped 1 row without values: line 1",
    "empty cells before the separator": "skipped 1 row without values: line 1",
    "empty cells in the last lines": "skipped 2 rows without values: line 5, 6",
    "empty cells in the last line, which does not end": "skipped 1 row without values: line 4",
    "empty cells between semicolons": "skipped 1 row without values: line 4",
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_spreadsheet_is_imported(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "saved.csv").write_bytes(FORMS[form])
    (tmp_path / "target.csv").write_text("other,orders,0,1\n")
    target = f"file:{tmp_path}/target.csv"
    shown = command("offsets", "import", tmp_path / "saved.csv", "--store", target, "--execute", "--yes").stderr
    assert f"saved.csv: {EMPTY_ROWS[form]}\n" in shown if form in EMPTY_ROWS else "without values" not in shown
    found = rows("offsets", "get", "--all-groups", "--store", target)
    assert [(row["group"], row["partition"], row["offset"]) for row in found] == [
        *(("müller", 0, 12), ("other", 0, 1), ("shop", 0, 5), ("shop", 1, 7))
    ]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("orders;0;5\n".encode("utf-16"), "its lines do not contain the group"),
        (CSV.encode("utf-16")[:-1], "it is not valid UTF-16"),
        ("müller;orders;0;5\n".encode("cp1252"), "line 1: not UTF-8 at byte 2"),
        (b"shop,orders,0,1.23457E+11\n", "offset 1.23457E+11 was rounded by a spreadsheet"),
        (b"shop;orders;0;1,23457E+11\r\n", "offset 1,23457E+11 was rounded by a spreadsheet"),
        (b"shop,orders,0,\n", "empty offset"),
        (b"shop,orders,0,5,note\n", "5 values instead of 4"),
        (CSV.encode().replace(b"\n", b"\r")[:-1], "its last line has no line end"),
        (b'"shop;orders;0;5\n', "a quote that never closes"),
        (b"shop\rorders,0,5\n", "holds a control character"),
    ],
)
@pytest.mark.parametrize("as_store", [False, True])
def test_the_error_of_another_file_names_the_trouble(data: bytes, why: str, as_store: bool, tmp_path: Path) -> None:
    file = tmp_path / "saved.csv"
    file.write_bytes(data)
    read = ["offsets", "get", "--all-groups", "--store", f"file:{file}"]
    words = read if as_store else ["offsets", "import", str(file), "--store", f"file:{tmp_path}/target.csv"]
    done = command(*words, code=None)
    assert why in done.stderr and done.stderr.startswith("error: ")
    assert "internal" not in done.stderr


@pytest.mark.parametrize(
    "data",
    [
        WAVES.encode("utf-16"),
        semicolons(WAVES).encode("utf-16"),
        WAVES.replace("\n", "\r").encode(),
        ("sep=;\r\n" + semicolons(WAVES)).encode("utf-8-sig"),
        (WAVES + ",,\n").encode(),
        "".join(f"{line},,\n" for line in WAVES.splitlines()).encode(),
        json.dumps([{"group": "billing", "wave": 2, "owner": "billing team"}, {"group": "audit", "wave": 1}]).encode(
            "utf-16"
        ),
    ],
)
def test_a_waves_file_may_have_the_same_forms(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "waves.csv").write_bytes(data)
    (tmp_path / "here.csv").write_text("billing,orders,0,5\naudit,orders,0,5\n")
    command("offsets", "export", "there.avro", "--group", "audit", "--store", "file:here.csv")
    sides = ("--from", "file:here.csv", "--to", "file:there.avro")
    command("migrate", "plan", *sides, "--waves", "waves.csv", "-o", "plan")
    found = {(row["group"], row["wave"], row["owner"]) for row in rows("migrate", "status", "plan", code=None)}
    assert found == {("billing", 2, "billing team"), ("audit", 1, None)}


def test_lines_of_the_old_export_tool_may_be_in_utf_16(tmp_path: Path) -> None:
    """PowerShell redirects output into such a file."""
    (tmp_path / "saved.zk").write_bytes("/consumers/g/offsets/t/0:5\r\n".encode("utf-16"))
    (row,) = rows("offsets", "get", "g", "--store", f"file:{tmp_path}/saved.zk")
    assert (row["group"], row["topic"], row["partition"], row["offset"]) == ("g", "t", 0, 5)


def test_an_export_names_its_columns_if_asked_and_an_edit_of_the_file_keeps_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "source.csv").write_text(CSV)
    saved, edit = tmp_path / "saved.csv", ("--execute", "--yes", "--store")
    export = ("offsets", "export", saved, "--all-groups", "--store", f"file:{tmp_path}/source.csv", "--header", "--as")
    command(*export, "csv")
    assert saved.read_text().startswith(HEADER) and sorted(saved.read_text().split()[1:]) == sorted(CSV.split())
    (tmp_path / "target.csv").write_text("shop,orders,0,1\n")
    command("offsets", "import", saved, *edit, f"file:{tmp_path}/target.csv")
    assert sorted((tmp_path / "target.csv").read_text().split()) == sorted(CSV.split())
    command("offsets", "set", "shop", "-t", "orders:0", "--to-offset", "6", *edit, f"file:{saved}")
    assert saved.read_text().startswith(HEADER) and "shop,orders,0,6\n" in saved.read_text()
    assert "error: --header: is for CSV, and not for zk\n" in command(*export, "zk", code=2).stderr
