"""``SqlReader``: the rows of a table or query in a database, in the order of a key."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torchpipe.errors import StateError
from torchpipe.node.content_digest import Unseen
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, Positions, stored_count
from torchpipe.node.validate import check_count, check_function

__all__ = ["SqlReader"]

_STYLES = ("qmark", "format", "pyformat", "numeric", "named")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MARK = "\0"  # of a parameter, until it is known how the connection's module writes one


class SqlReader(IterDataPipe[dict[str, Any]]):
    """Yields the rows of a table, or of a query, as dicts, in the order of a key: page by page, each by the key after
    the last one of the page before (keyset pagination), so that no page takes longer than the first.

    ``connect``, a function without arguments, returns a connection (PEP 249) and is called once in each pass, in the
    process that reads. ``table`` is the name of a table or view; ``query`` a SELECT in its place. ``key`` is a
    column, or columns, without nulls, whose values differ from row to row; with an index on it, resuming costs one
    look-up. ``columns`` are those to read. ``page_size`` rows are fetched at once. ``paramstyle`` is that of the
    connection's module by default.

    State: the key of the last row, and the number of rows. Rows that others insert or delete behind it while an epoch
    runs take part in it or not: read a snapshot where that matters. A sharding point straight after it lets the
    database choose the shard's rows (``ROW_NUMBER``), so that others are not sent.

    Raises: TypeError, ValueError for wrong arguments; while iterating, what the database raises, with a note of the
    query; ValueError for a null key, or one that does not go up; StateError for a state without a key.
    """

    by_index = True
    fingerprint_ignores = ("page_size",)

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str | None = None,
        *,
        query: str | None = None,
        key: str | Sequence[str],
        columns: Sequence[str] | None = None,
        page_size: int = 1000,
        paramstyle: str | None = None,
    ) -> None:
        check_function("connect", connect)
        if (table is None) == (query is None):
            raise ValueError(f"SqlReader needs a table or a query, one of both, got {table!r:.80} and {query!r:.80}")
        if paramstyle is not None and paramstyle not in _STYLES:
            raise ValueError(f"paramstyle must be one of {', '.join(map(repr, _STYLES))}, got {paramstyle!r}")
        self.connect = connect
        self.table = _named("table", table) if query is None else f"({query.strip().rstrip(';')}) AS source"
        self.key = _names("key", key)
        self.columns = None if columns is None else _names("columns", columns)
        self.page_size = check_count("page_size", page_size, at_least=1)
        self.paramstyle = paramstyle

    def made_of(self) -> Mapping[str, Any]:
        return {**vars(self), "rows": Unseen("what a database holds may change unseen")}

    def iterate(self, context: Context) -> NodeIterator[dict[str, Any]]:
        return _SqlIterator(self, context)


def _named(what: str, name: object) -> str:
    """A name that needs no quotes, for databases differ in these. Raises: TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a name, got {name!r} of type {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what} must be of letters, digits and underscores, got {name!r}: give a query with AS")
    return name


def _names(what: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str) and what == "key":
        return (_named(what, names),)
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise ValueError(f"{what} must be a list of names, at least one, got {names!r}")
    return tuple(_named(what, name) for name in names)


class _SqlIterator(NodeIterator[dict[str, Any]]):
    """State: the key of the last row, and the number of rows up to it, others' included."""

    node: SqlReader

    def __init__(self, node: SqlReader, context: Context) -> None:
        super().__init__(node, context)
        self.position = 0
        self._last: list[Any] | None = None
        self._parts, self._part = 1, 0
        self._connection: Any = None
        self._names: list[str] = []  # of the columns that were read last

    @property
    def by_position(self) -> Positions:
        return Positions(self, self._stride)

    def _stride(self, parts: int, part: int) -> None:
        self._parts, self._part = parts, part

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position, "key": None if self._last is None else list(self._last)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.position, key = stored_count(state, "position"), state["key"]
        if key is not None and (type(key) is not list or len(key) != len(self.node.key)):
            raise StateError(f"the state has the key {key!r:.80}, and SqlReader reads by {', '.join(self.node.key)}")
        if any(isinstance(value, list | tuple | dict | set) for value in key or ()):
            raise StateError(f"the key of a row is made of single values, the state has {key!r:.80}")
        if (key is None) != (self.position == 0):
            raise StateError(f"the state stands after row {self.position}, with the key {key!r:.80}")
        self._last = key

    def run(self) -> Iterator[dict[str, Any]]:
        node = self.node
        self._connection = node.connect()
        nulls = " OR ".join(f"{name} IS NULL" for name in node.key)
        if self._rows(f"SELECT 1 FROM {node.table} WHERE {nulls} LIMIT 1", [])[1]:
            raise ValueError(
                f"{node.table} has rows whose {' or '.join(node.key)} is null: they have no place in an order"
            )
        while True:
            before = self.position
            names, rows = self._page(before)
            keys = [names.index(name.lower()) for name in node.key]
            wanted = node.columns or self._names[:-2]
            if rows and [rows[0][index] for index in keys] == self._last:
                raise ValueError(
                    f"a row of {node.table} comes again behind its own key, {_shown(node.key, self._last)}: a key that "
                    "is rounded on its way here and back does not go up. Read it in a form that is not, such as text: "
                    "give a query with CAST(... AS ...)"
                )
            others = 1 if before % self._parts != self._part else 0  # the first row, which was looked at alone
            rows = rows[others : others + node.page_size]
            for row in rows:
                number, same = row[-2:]
                key = [row[index] for index in keys]
                if same > 1:
                    raise ValueError(
                        f"{same} rows of {node.table} have {_shown(node.key, key)}: a key tells rows from each other"
                    )
                self.position, self._last = before + number, key
                yield dict(zip(wanted, row))
            if len(rows) < node.page_size:
                return

    def _page(self, position: int) -> tuple[list[str], list[Any]]:
        """The first row behind the last key, and the shard's next ones. After the columns come the row's number there,
        from 1 on, and how many of these rows have its key; one row more is looked at than can be handed out, so that
        none hides the next.
        """
        node, keys, parts = self.node, ", ".join(self.node.key), self._parts
        columns = (*(node.columns or ("*",)), *(name for name in node.key if node.columns and name not in node.columns))
        marks = ", ".join(_MARK for _ in node.key)
        behind = f"({keys}) > ({marks})" if len(node.key) > 1 else f"{keys} > {marks}"
        return self._rows(
            "SELECT * FROM ("
            f"SELECT page.*, ROW_NUMBER() OVER (ORDER BY {keys}) AS torchpipe_number, "
            f"COUNT(*) OVER (PARTITION BY {keys}) AS torchpipe_same FROM ("
            f"SELECT {', '.join(columns)} FROM {node.table} {f'WHERE {behind} ' if self._last else ''}"
            f"ORDER BY {keys} LIMIT {node.page_size * parts + 1}) AS page) AS numbered "
            f"WHERE torchpipe_number = 1 OR (torchpipe_number - 1 + {position}) % {parts} = {self._part} "
            f"ORDER BY torchpipe_number LIMIT {node.page_size + 1}",
            self._last or [],
        )

    def _rows(self, query: str, values: list[Any]) -> tuple[list[str], list[Any]]:
        """The names of the columns, in lower case, and the rows."""
        style = self.node.paramstyle or _paramstyle(self._connection)
        sql, bound = _bound(query, values, style)
        cursor = self._connection.cursor()
        try:
            cursor.execute(sql, *([bound] if values else ()))
            self._names = [column[0] for column in cursor.description]
            return [name.lower() for name in self._names], cursor.fetchall()
        except Exception as error:
            error.add_note(f"SqlReader: behind row {self.position}, in the query {sql}")
            raise
        finally:
            cursor.close()

    def close(self) -> None:
        super().close()
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                connection.close()
        except Exception:  # sqlite3's may be closed in its own thread alone; there is no other reference to it
            pass


def _shown(names: Sequence[str], key: Sequence[Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in zip(names, key))


def _paramstyle(connection: Any) -> str:
    """The style that the module of the connection, or a package around it, names. Raises: ValueError."""
    name = type(connection).__module__
    while name:
        style = getattr(sys.modules.get(name), "paramstyle", None)
        if style in _STYLES:
            return str(style)
        name = name.rpartition(".")[0]
    raise ValueError(
        f"the module of {type(connection).__name__} does not say how parameters are written: give paramstyle, one of "
        f"{', '.join(map(repr, _STYLES))}"
    )


def _bound(query: str, values: list[Any], style: str) -> tuple[str, Any]:
    """The query with places for ``values`` as ``style`` has them, and these as it takes them."""
    if style in (
        "format",
        "pyformat",
    ):  # without parameters, too: some modules look for % then as well, and some do not
        query = query.replace("%", "%%") if values else query
    parts = query.split(_MARK)
    marks = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":{0}", "named": ":key{0}"}
    sql = parts[0] + "".join(marks[style].format(number) + part for number, part in enumerate(parts[1:], 1))
    if style == "named":
        return sql, {f"key{number}": value for number, value in enumerate(values, 1)}
    return sql, values
