"""``SqlReader``: rows in the order of a key, page by page; what would lose rows silently is refused."""

from __future__ import annotations

import datetime
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.errors import StateError
from torchpipe.iter import SqlReader
from torchpipe.iter.sql import _bound
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node

ROWS = [(7 * number % 23, f"text {number} 100%", number / 4) for number in range(23)]
IDS = list(range(23))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, text TEXT, x REAL)")
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", ROWS)
        connection.execute("CREATE TABLE pairs (a TEXT, b INTEGER, c INTEGER)")
        connection.executemany("INSERT INTO pairs VALUES (?, ?, ?)", [("xyz"[n % 3], n, n) for n in range(10)])
    connection.close()
    return path


def connecting(path: Path, said: list[str] | None = None) -> Callable[[], Any]:
    def connect() -> Any:
        connection = sqlite3.connect(path)
        if said is not None:
            connection.set_trace_callback(said.append)
        return connection

    return connect


def test_rows_are_dicts_in_the_order_of_the_key(path: Path) -> None:
    connect = connecting(path)
    rows = list(SqlReader(connect, "items", key="id", page_size=4))
    assert rows == [dict(zip(("id", "text", "x"), row)) for row in sorted(ROWS)]
    assert list(SqlReader(connect, "items", key="id", columns=["x"]))[:2] == [{"x": 0.0}, {"x": 10 / 4}]
    query = "SELECT id * 2 AS twice, text FROM items WHERE text LIKE '%1 100%';"
    assert [row["twice"] for row in SqlReader(connect, query=query, key="twice", page_size=1)] == sorted(
        2 * row[0] for row in ROWS if "1 100" in row[1]
    )
    pairs = [(row["a"], row["b"]) for row in SqlReader(connect, "pairs", key=["a", "b"], page_size=3)]
    assert pairs == sorted(("xyz"[number % 3], number) for number in range(10))


@pytest.mark.parametrize("page_size", [1, 4, 1000])
def test_L2_exact_resume(path: Path, page_size: int) -> None:
    connect = connecting(path)
    check_node(
        lambda: SqlReader(connect, "items", key="id", page_size=page_size), epochs=[0], num_shards=1, positions=9
    )
    shards = SqlReader(connect, "items", key="id", page_size=page_size).sharding_filter()
    check_node(lambda: shards, epochs=[0], num_shards=3, positions=4)


def test_L2_exact_resume_by_several_columns_and_by_dates(path: Path) -> None:
    check_node(lambda: SqlReader(connecting(path), "pairs", key=["a", "b"], page_size=3), epochs=[0], positions=6)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE days (day TEXT PRIMARY KEY)")
        for day in range(1, 6):
            connection.execute("INSERT INTO days VALUES (?)", [datetime.date(2026, 1, day).isoformat()])
    connection.close()
    check_node(lambda: SqlReader(connecting(path), "days", key="day", page_size=2).sharding_filter(), epochs=[0])


def test_L1_the_database_chooses_a_shards_rows(path: Path) -> None:
    for page_size in (1, 2, 5, 100):
        node = SqlReader(connecting(path), "items", key="id", page_size=page_size).sharding_filter()
        for shard in range(4):
            assert [row["id"] for row in iterate(node, shard=shard, num_shards=4)] == IDS[shard::4]


def test_L5_a_resume_asks_for_what_is_behind_the_key_alone(path: Path) -> None:
    said: list[str] = []
    node = SqlReader(connecting(path, said), "items", key="id", page_size=5)
    iterator = iterate(node)
    for _ in range(20):
        next(iterator)
    again = iterate(node)
    again.load_state_dict(iterator.state_dict())
    said.clear()
    assert [row["id"] for row in again] == [20, 21, 22]
    assert len(said) == 2  # are there nulls, and the page
    assert "WHERE id > 19 ORDER BY id LIMIT 6" in said[1]
    iterator.close()


def test_L7_keys_that_would_lose_rows_are_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE doubled AS SELECT id / 2 AS half, text FROM items")
        connection.execute("CREATE TABLE gone AS SELECT NULLIF(id, 5) AS id FROM items")
    connection.close()
    for page_size in (1, 2, 3, 100):
        for shards in (1, 2, 3):
            caught = 0
            for shard in range(shards):
                node: Any = SqlReader(connecting(path), "doubled", key="half", page_size=page_size).sharding_filter()
                try:
                    list(iterate(node, shard=shard, num_shards=shards))
                except ValueError as error:
                    assert "2 rows of doubled have half=" in str(error)
                    caught += 1
            assert caught, (page_size, shards)
    with pytest.raises(ValueError, match="gone has rows whose id is null: they have no place in an order"):
        list(SqlReader(connecting(path), "gone", key="id"))


def test_L7_errors_of_the_database_name_the_query(path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match=r"(?s)no such column: idd.*SqlReader: behind row 0, in"):
        list(SqlReader(connecting(path), "items", key="idd"))
    with pytest.raises(sqlite3.OperationalError, match="no such table: itemz"):
        list(SqlReader(connecting(path), "itemz", key="id"))
    with pytest.raises(sqlite3.OperationalError, match="unable to open database file"):
        list(SqlReader(connecting(path.parent / "missing" / "a.db"), "items", key="id"))


def test_zero_rows(path: Path) -> None:
    assert list(SqlReader(connecting(path), query="SELECT * FROM items WHERE id < 0", key="id")) == []


def test_L6_the_connection_is_closed_with_the_pass_in_another_thread_too(path: Path) -> None:
    opened: list[Any] = []

    def connect() -> Any:
        opened.append(sqlite3.connect(path))
        return opened[-1]

    iterator = iterate(SqlReader(connect, "items", key="id"))
    next(iterator)
    iterator.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        opened.pop().cursor()
    iterator = iterate(SqlReader(connect, "items", key="id"))
    next(iterator)
    opened.clear()
    thread = threading.Thread(target=iterator.close)
    thread.start()
    thread.join()


def test_L3_in_workers_it_is_the_same_stream(path: Path) -> None:
    graph = SqlReader(connecting(path), "items", key="id", page_size=3).sharding_filter()
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=MultiProcessingReadingService(num_workers=2))
    assert [row["id"] for row in loader] == IDS
    loader.shutdown()


@pytest.mark.parametrize(
    ("style", "sql", "values"),
    [
        ("qmark", "a % ? AND b > ?", [1, 2]),
        ("format", "a %% %s AND b > %s", [1, 2]),
        ("pyformat", "a %% %s AND b > %s", [1, 2]),
        ("numeric", "a % :1 AND b > :2", [1, 2]),
        ("named", "a % :key1 AND b > :key2", {"key1": 1, "key2": 2}),
    ],
)
def test_parameters_are_written_as_the_module_wants(style: str, sql: str, values: Any) -> None:
    assert _bound("a % \0 AND b > \0", [1, 2], style) == (sql, values)
    assert _bound("a % 2", [], style)[0] == "a % 2"


def test_the_module_of_a_connection_says_how_they_are_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("someone.database")

    class Connection(sqlite3.Connection):
        __module__ = "someone.database"

    def connect() -> Any:
        return sqlite3.connect(path, factory=Connection)

    with pytest.raises(ValueError, match="the module of Connection does not say how parameters are written"):
        list(SqlReader(connect, "items", key="id"))
    assert len(list(SqlReader(connect, "items", key="id", paramstyle="numeric", page_size=9))) == 23
    module.paramstyle = "named"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "someone.database", module)
    assert len(list(SqlReader(connect, "items", key="id", page_size=9))) == 23


def test_L8_forged_states_are_refused(path: Path) -> None:
    for position, key in ((3, None), (0, [1]), (2, [1, 2]), (1, 1), (-1, [1]), (1, [[1]])):
        state = {"position": position, "key": key}
        with pytest.raises(StateError):
            iterate(SqlReader(connecting(path), "items", key="id")).load_state_dict(state)


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 1000])
@pytest.mark.parametrize("keys", [["k"], ["same", "k"]])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_key_that_comes_back_rounded_is_an_error_and_repeats_nothing(
    page_size: int, keys: list[str], shards: int, path: Path
) -> None:
    def connect() -> Any:  # as drivers whose times end at microseconds
        connection = sqlite3.connect(path, detect_types=sqlite3.PARSE_DECLTYPES)
        return connection

    sqlite3.register_converter("nanoseconds", lambda text: int(text) // 1000 * 1000)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE times (k nanoseconds, same INTEGER, n INTEGER)")
        connection.executemany("INSERT INTO times VALUES (?, 1, ?)", [(n * 1000 + 1123 + n, n) for n in range(13)])
    connection.close()
    for shard in range(shards):
        node = SqlReader(connect, "times", key=keys, page_size=page_size).sharding_filter()
        iterator = iterate(node, shard=shard, num_shards=shards)
        mine, got = list(range(shard, 13, shards)), []
        if page_size <= len(mine):
            with pytest.raises(
                ValueError, match="comes again behind its own key, .*k=[0-9]*000: a key that is rounded"
            ):
                for row in iterator:
                    got.append(row["n"])
            assert got == mine[: len(got)]
        else:
            assert [row["n"] for row in iterator] == mine
        resumed = iterate(node, shard=shard, num_shards=shards)
        iterator = iterate(node, shard=shard, num_shards=shards)
        next(iterator)
        resumed.load_state_dict(iterator.state_dict())
        with pytest.raises(ValueError, match="comes again behind its own key"):
            list(resumed)
