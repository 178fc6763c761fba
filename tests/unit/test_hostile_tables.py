"""Tables that a tenant made to harm the process that reads them: it goes on, within its memory."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from group_hygiene.evidence.reader import Reading, Tables
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import ActivitySpec
from tests.warehouse import Warehouse, idle

_MIB = 1 << 20
_READ = """
import json, os, sys, threading, time
from pathlib import Path
from group_hygiene.evidence.reader import Tables
from group_hygiene.spec.connection import ActivitySpec

def most(process):
    text = Path(f"/proc/{process}/status").read_text()
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")), 0)

def watch():
    while True:
        for task in Path("/proc/self/task").iterdir():
            try:
                for child in (task / "children").read_text().split():
                    peaks.append(most(child))
            except OSError:
                pass
        time.sleep(0.005)

peaks = [0]
threading.Thread(target=watch, daemon=True).start()
told = Tables(ActivitySpec(sys.argv[1])).read(["billing"], 300)
print(json.dumps([getattr(told, "reason", None), getattr(told, "message", ""), most("self"), max(peaks)]))
"""


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    made = Warehouse(tmp_path)
    made.write([idle("billing")])
    return made


def _repeat(table: Path, times: int, **changes: object) -> None:
    """The first row of a table so many times, with other values: in a file, that takes next to nothing."""
    rows = pq.read_table(next(table.glob("*.parquet")))
    for name, value in changes.items():
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, rows.field(index), pa.array([value] * len(rows), rows.field(index).type))
    file = table / "hostile.parquet"
    pq.write_table(rows.take(pa.array([0] * times)), file)
    log = next((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"] |= {"path": file.name, "size": file.stat().st_size, "stats": None}
    log.write_text("\n".join(map(json.dumps, actions)))


def _equal_coverage(warehouse: Warehouse) -> None:
    _repeat(warehouse.folder / "coverage", 1_000_000)


def _long_texts_in_coverage(warehouse: Warehouse) -> None:
    _repeat(warehouse.folder / "coverage", 200, topic_id="x" * _MIB)


def _equal_activity(warehouse: Warehouse) -> None:
    _repeat(warehouse.folder / "activity", 1_000_000)


def _long_texts_in_activity(warehouse: Warehouse) -> None:
    _repeat(warehouse.folder / "activity", 200, state="x" * _MIB)


def _a_long_list_of_offsets(warehouse: Warehouse) -> None:
    table = DeltaTable(warehouse.folder / "activity")
    offset = {"topic": "t", "partition": 0, "commit_time": None}
    row = idle("billing", state="Active", offsets=[offset] * 1_000_000)
    table.delete()
    warehouse.write_activity([row])
    warehouse.cover()


def _a_long_log(warehouse: Warehouse) -> None:
    log = next((warehouse.folder / "coverage" / "_delta_log").glob("*.json"))
    log.write_text(log.read_text() + "\n" + json.dumps({"commitInfo": {"operation": "x" * (300 * _MIB)}}))


def _a_checkpoint_that_swells(warehouse: Warehouse) -> None:
    table = DeltaTable(warehouse.folder / "coverage")
    table.create_checkpoint()
    file = next((warehouse.folder / "coverage" / "_delta_log").glob("*.parquet"))
    rows = pq.read_table(file)
    pq.write_table(rows.take(pa.array([0] * 2_000_000 + list(range(len(rows))))), file)
    for log in (warehouse.folder / "coverage" / "_delta_log").glob("*.json"):
        log.unlink()


@pytest.mark.parametrize(
    ("harm", "read"),
    [
        pytest.param(_equal_coverage, False, id="equal-rows-of-coverage"),
        pytest.param(_long_texts_in_coverage, False, id="long-texts-in-coverage", marks=pytest.mark.slow),
        pytest.param(_equal_activity, False, id="equal-rows-of-activity", marks=pytest.mark.slow),
        pytest.param(_long_texts_in_activity, False, id="long-texts-in-activity"),
        pytest.param(_a_long_list_of_offsets, True, id="a-long-list-that-is-not-asked-for", marks=pytest.mark.slow),
        pytest.param(_a_long_log, None, id="a-long-delta-log"),
        pytest.param(_a_checkpoint_that_swells, None, id="a-checkpoint-that-swells", marks=pytest.mark.slow),
    ],
)
def test_hostile_tables_take_no_more_than_their_share(
    warehouse: Warehouse, harm: Callable[[Warehouse], None], read: bool | None
) -> None:
    """Whatever a table holds, its reading ends within the memory of a reader, of which two run at a time.

    read: whether the table can be read all the same; None = either.
    """
    harm(warehouse)
    done = subprocess.run([sys.executable, "-c", _READ, warehouse.uri], capture_output=True, text=True, check=True)
    reason, message, own, reader = json.loads(done.stdout)
    assert own < 90 * 1024, "memory of the process that asks, in KiB"
    assert reader > 0
    # The libraries themselves, some 50 MiB, are mapped from their files, and shared by all.
    assert reader < (112 + 60) * 1024, "memory of the process that reads, in KiB"
    assert reason == reasons.EVIDENCE_UNREADABLE if read is False else reason in (None, reasons.EVIDENCE_UNREADABLE)
    assert (reason is None) is read or read is None, message


def test_others_are_served_meanwhile(warehouse: Warehouse, tmp_path: Path) -> None:
    """A connection of another namespace gets its evidence while one with hostile tables tries again and again."""
    hostile = Warehouse(tmp_path / "hostile")
    hostile.write([idle("billing")])
    _repeat(hostile.folder / "activity", 1_000_000)
    end = threading.Event()

    def try_again() -> None:
        while not end.is_set():
            Tables(ActivitySpec(hostile.uri), owner="evil").read(["billing"], 60)

    threads = [threading.Thread(target=try_again) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            found = Tables(ActivitySpec(warehouse.uri), owner="good").read(["billing"], 120)
            assert isinstance(found, Reading), found
    finally:
        end.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("../../theirs/activity/{name}", id="dots"),
        pytest.param("%2e%2e/%2e%2e/theirs/activity/{name}", id="escaped-dots"),
        pytest.param("%252e%252e/%252e%252e/theirs/activity/{name}", id="dots-escaped-twice"),
        pytest.param("file://{folder}/theirs/activity/{name}", id="another-url"),
        pytest.param("{folder}/theirs/activity/{name}", id="a-path-from-the-root"),
    ],
)
def test_a_table_names_no_files_of_another(tmp_path: Path, path: str) -> None:
    """The operator may read both folders; whoever writes one of them must not be shown the other."""
    theirs, own = Warehouse(tmp_path / "theirs"), Warehouse(tmp_path / "own")
    theirs.write([idle("billing")])
    own.write([idle("other")])
    file = next((theirs.folder / "activity").glob("*.parquet"))
    log = next((own.folder / "activity" / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            named = path.format(name=file.name, folder=tmp_path)
            action["add"] |= {"path": named, "size": file.stat().st_size, "stats": None}
    log.write_text("\n".join(map(json.dumps, actions)))
    found = Tables(ActivitySpec(own.uri)).read(["billing"], 60)
    assert isinstance(found, Refusal)
    assert "files that are not in its folder" in found.message
