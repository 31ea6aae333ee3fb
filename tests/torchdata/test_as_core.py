"""What tests of the core hold its nodes to, of torchdata's other nodes: entries for the tables of those tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import product
from types import ModuleType
from typing import Any

import pytest
from torch.utils.data import RandomSampler

from tests import test_function_results, test_ownership
from tests.graph import test_arguments_count
from tests.iter._shared import test_fields
from tests.iter.branching import test_branches
from tests.iter.files import test_changed_files
from tests.iter.running import (
    test_ends,
    test_on_error,
    test_on_error_alignment,
    test_on_error_of_nodes,
    test_on_error_within,
    test_parallel_mapper,
)
from tests.iter.running.test_ends import first, numbers
from tests.iter.running.test_on_error import no_threes, none_of_fives, parts
from tests.iter.running.test_on_error_of_nodes import opened
from tests.laws import test_before_sharding, test_L3_changed_code
from tests.test_ownership import change, number_of, parts_of
from torchpipe.iter import IterableWrapper
from torchpipe.torchdata import FileLister, Sampler

Make = Callable[..., Any]


@dataclass(frozen=True)
class Held:
    """The tests ``names`` of the core's module ``of``, with each of ``entries`` in its ``table``, if it has one."""

    of: ModuleType
    table: str
    entries: dict[str, Any]
    names: tuple[str, ...]
    fixtures: tuple[str, ...] = ()  # of that module, which are called with tmp_path


def later(fails: Make) -> Make:
    async def call(item: Any) -> Any:
        return fails(item)

    return call


def no_five(item: int) -> int:
    if item == 5:
        raise ValueError("bad")
    return item


def unzipped_pairs() -> Any:
    one, other = test_on_error_alignment.source().map(lambda n: (n, n)).unzip(2)
    return one.map(test_on_error_alignment.checked).zip(other)


def unzipped(graph: Any) -> Any:
    one, other = graph.map(test_ownership.pair_of).unzip(2)
    return one.map(change).zip(other.shuffle(buffer_size=3))


def unzipped_twice_the_same(graph: Any) -> Any:
    one, other = graph.map(lambda item: (item, [item])).unzip(2)
    return one.map(change).zip(other.shuffle(buffer_size=3))


NODES, PARTS = test_arguments_count.NODES, test_function_results.PARTS
open_in, paths_in, content = test_changed_files.opened, test_changed_files.paths, test_changed_files.content
N = test_before_sharding.N

HELD = [
    Held(
        test_fields,
        "FORMS",
        {
            "rows2columnar": lambda samples: IterableWrapper([samples]).rows2columnar(),
            "dataframe": lambda samples: IterableWrapper(samples).dataframe(),
        },
        ("test_a_field_that_a_later_sample_adds_or_lacks_is_an_error",),
    ),
    Held(
        test_branches,
        "MAKERS",
        {
            "unzip": lambda source, **options: source.map(lambda item: (item, "x", -item)).unzip(
                3, columns_to_skip=[1], **options
            ),
            "round_robin_demux": lambda source, **options: source.round_robin_demux(2, **options),
        },
        (
            "test_L2_exact_resume_however_branches_are_read",
            "test_L2_exact_resume_where_states_of_branches_are_of_different_moments",
            "test_rounds_of_a_cycle_have_a_pass_each",
        ),
    ),
    Held(
        test_changed_files,
        "FORMS",
        {
            "readlines": (test_changed_files.text, lambda folder: open_in(folder).readlines(return_path=False)),
            "readlines of text": (
                test_changed_files.text,
                lambda folder: paths_in(folder).open_files().readlines(return_path=False),
            ),
            "readlines, compressed": (
                test_changed_files.gz,
                lambda folder: open_in(folder).decompress().readlines(return_path=False),
            ),
            "parse_csv": (test_changed_files.text, lambda folder: paths_in(folder).open_files().parse_csv()),
            "read_from_stream": (
                test_changed_files.text,
                lambda folder: open_in(folder).read_from_stream(7).map(lambda pair: pair[1]),
            ),
            "by fsspec": (
                test_changed_files.text,
                lambda folder: paths_in(folder).open_files_by_fsspec("rb").readlines(return_path=False),
            ),
            "load_from_tar": (test_changed_files.tar, lambda folder: open_in(folder).load_from_tar().map(content)),
            "load_from_tar, readlines": (
                test_changed_files.tar,
                lambda folder: open_in(folder).load_from_tar().readlines(return_path=False),
            ),
            "load_from_zip": (test_changed_files.zipped, lambda folder: open_in(folder).load_from_zip().map(content)),
            "load_from_tfrecord": (
                test_changed_files.records,
                lambda folder: open_in(folder).load_from_tfrecord().map(str),
            ),
        },
        ("test_another_file_of_the_same_name_is_refused",),
    ),
    Held(
        test_ends,
        "FUNCTIONS",
        {
            "map_batches": lambda: numbers().map_batches(lambda items: [first(items[0])], 1),
            "max_token_bucketize": lambda: numbers().max_token_bucketize(100, len_fn=first),
            "routed_decode": lambda: (
                numbers().map(lambda item: (str(item), BytesIO(b""))).routed_decode(lambda key, data: first(3))
            ),
            "save_to_disk": lambda: (
                numbers().map(lambda item: (str(item), "")).save_to_disk(filepath_fn=lambda name: str(first(int(name))))
            ),
            "shuffled_flatmap": lambda: numbers().shuffled_flatmap(lambda item: [first(item)], buffer_size=2),
        },
        ("test_L7_a_function_that_raises_stop_iteration_is_an_error",),
    ),
    Held(
        test_ends,
        "",
        {"shuffled_flatmap": None},
        (
            "test_L7_what_is_opened_is_read_to_its_length",
            "test_L2_nodes_that_a_function_makes_are_of_the_pass",
            "test_a_stream_is_not_divided_again_by_what_a_function_makes",
        ),
    ),
    Held(
        test_ends,
        "SIZED",
        {"max_token_bucketize": lambda source: source.max_token_bucketize(5, buffer_size=3)},
        ("test_items_of_another_size_are_counted_and_told_once",),
    ),
    Held(
        test_on_error,
        "FAILING",
        {
            "tokens": (
                lambda node: node.max_token_bucketize(11, no_threes),
                [[1, 2, 4], [5], [7], [8], [10], [11]],
            )
        },
        ("test_L2_bad_items_are_left_out_and_nothing_else",),
    ),
    Held(
        test_on_error,
        "NAMED",
        {"drawn": (lambda: IterableWrapper(range(7)).shuffled_flatmap(parts, buffer_size=3), ["0", "3", "6"])},
        ("test_what_was_left_out_is_named_by_what_the_node_had_in_hand",),
    ),
    Held(
        test_on_error,
        "TOGETHER",
        {
            "map_batches": lambda node: node.map_batches(none_of_fives, 8),
            "async_map_batches": lambda node: node.async_map_batches(later(no_five), 8),
            "rows2columnar": lambda node: node.map(lambda item: {item == 5: item}).batch(8).rows2columnar(),
        },
        ("test_all_items_that_fail_together_are_counted",),
    ),
    Held(
        test_on_error_alignment,
        "EXACT",
        {
            "itemwise": lambda: test_on_error_alignment.pair(
                lambda dp: dp.map(lambda n: [test_on_error_alignment.checked(n), 0]).slice([0]).map(sum)
            ),
            "unzip": unzipped_pairs,
        },
        ("test_L2_what_is_left_out_is_left_out_of_the_tuple",),
    ),
    Held(
        test_on_error_of_nodes,
        "CASES",
        {
            "parse_json_files": (lambda source: source.map(opened).parse_json_files(), 6),
            "routed_decode": (lambda source: source.map(opened).routed_decode(lambda key, data: int(data)), 6),
            "drop": (lambda source: source.map(lambda item: [item] * (item % 3)).drop(0), 6),
            "add_index": (lambda source: source.map(lambda item: {} if item % 3 else 0).add_index(), 6),
            "rows2columnar": (
                lambda source: source.map(lambda item: [{"a" if item % 3 else "b": 1}]).rows2columnar(["a"]),
                6,
            ),
            "check_hash": (lambda source: source.map(lambda item: (item, b"")).check_hash({1: "0"}), 0),
            "lines_to_paragraphs": (
                lambda source: source.map(lambda item: (item, "x")).lines_to_paragraphs(
                    lambda lines: no_threes(len(lines) + 2)
                ),
                0,
            ),
            "async_map_batches": (lambda source: source.async_map_batches(later(no_threes), 1), 6),
            "map_batches": (lambda source: source.map_batches(lambda items: [no_threes(items[0])], 1), 6),
            "shuffled_flatmap": (
                lambda source: source.shuffled_flatmap(lambda item: [no_threes(item)], buffer_size=3),
                6,
            ),
            "load_from_zip": (lambda source: source.map(opened).load_from_zip(), 0),
            "decompress": (lambda source: source.map(opened).decompress("tar"), 0),
        },
        ("test_L2_bad_items_are_left_out",),
    ),
    Held(
        test_on_error_within,
        "FORMS",
        {"shuffled_flatmap": lambda paths: paths.shuffled_flatmap(test_on_error_within.tolerant, buffer_size=2)},
        ("test_what_is_left_out_within_stays_told",),
        ("paths",),
    ),
    Held(
        test_parallel_mapper,
        "THREADS",
        {
            "threadpool_map": lambda node, count: node.threadpool_map(
                test_parallel_mapper.uneven, max_workers=count, scheduled_tasks=5
            )
        },
        ("test_L2_a_state_loads_under_another_number_of_threads",),
    ),
    Held(
        test_before_sharding,
        "BEFORE",
        {
            "Sampler": lambda: Sampler(IterableWrapper(range(N)), RandomSampler).sharding_filter(),
            "map_batches": lambda: (
                IterableWrapper(range(N)).map_batches(test_before_sharding.shuffled, batch_size=5).sharding_filter()
            ),
        },
        (
            "test_L1_nothing_is_lost_and_nothing_comes_twice",
            "test_L1_L4_workers_give_what_one_process_gives_though_one_is_killed",
        ),
    ),
    Held(
        test_ownership,
        "KEEPERS",
        {
            "threadpool_map": lambda graph: graph.threadpool_map(change, scheduled_tasks=5, max_workers=2),
            "max_token_bucketize": lambda graph: graph.max_token_bucketize(12, number_of, buffer_size=4),
            "shuffled_flatmap": lambda graph: graph.shuffled_flatmap(parts_of, buffer_size=2),
            "unzip": unzipped,
            "unzip, with an object in two columns": unzipped_twice_the_same,
            "async_map_batches": lambda graph: graph.async_map_batches(later(change), 3),
            "map_batches": lambda graph: graph.map_batches(change, 3),
        },
        (
            "test_L2_functions_that_change_their_argument",
            "test_L1_in_two_shards_and_the_next_epoch_also_where_the_graph_lives_on",
        ),
    ),
    Held(
        test_function_results,
        "SIZED",
        {
            "max_token_bucketize": lambda of: test_function_results.source().max_token_bucketize(
                6, lambda item: of(len(item)), buffer_size=4
            )
        },
        ("test_what_is_saved_after_a_number_of_any_kind_loads_and_goes_on",),
    ),
    Held(
        test_function_results,
        "GRAPHS",
        {"max_token_bucketize": lambda how_long: test_function_results.source().max_token_bucketize(6, how_long)},
        ("test_what_is_no_size_is_an_error_that_names_function_and_value",),
    ),
    Held(
        test_function_results,
        "NAMED",
        {
            "drop": lambda of: PARTS.drop(of(1)),
            "drop several": lambda of: PARTS.drop([of(1), of(2)]),
            "slice": lambda of: PARTS.slice([of(0), 1]),
            "slice from": lambda of: PARTS.slice(of(0), of(2)),
            "slice of dicts": lambda of: IterableWrapper([{0: "a", 1: "b"}]).slice(of(1)),
            "flatten": lambda of: PARTS.flatten(of(1)),
            "unzip": lambda of: PARTS.unzip(3, columns_to_skip=[of(1)])[1],
        },
        ("test_places_and_columns_may_be_numbers_of_any_kind",),
    ),
    Held(
        test_arguments_count,
        "OF_FORMS",
        {
            "routed_decode": (lambda value: NODES.routed_decode(value), *test_arguments_count.FUNCTIONS),
            "save_to_disk": (lambda value: NODES.save_to_disk(filepath_fn=value), *test_arguments_count.FUNCTIONS),
            "unzip": (lambda value: NODES.unzip(3, columns_to_skip=value)[0].concat(NODES), [0], [1]),
            "parse_csv": (lambda value: NODES.parse_csv(delimiter=value), ",", ";"),
            "parse_json_files": (lambda value: NODES.parse_json_files(parse_float=value), float, str),
            "load_from_tfrecord": (
                lambda value: NODES.load_from_tfrecord(value),
                *test_arguments_count.VALUES["spec"],
            ),
            "list_files": (lambda value: FileLister(".", masks=value), ["*.a"] * 9, ["*.a"] * 8 + ["*.b"]),
        },
        ("test_it_counts_in_other_nodes",),
    ),
    Held(
        test_arguments_count,
        "ONLY_HOW_FAST",
        {
            "threadpool_map": lambda value: NODES.threadpool_map(tuple, max_workers=value),
            "async_map_batches": lambda value: NODES.async_map_batches(later(tuple), 2, max_concurrency=value),
            "round_robin_demux": lambda value: NODES.round_robin_demux(2, buffer_size=value)[0].concat(NODES),
            "unzip": lambda value: NODES.unzip(3, buffer_size=value)[0].concat(NODES),
        },
        ("test_what_changes_no_item_does_not_count",),
    ),
]


def _others(test: Make, entry: str) -> Iterator[dict[str, Any]]:
    """The arguments of a core's test, with ``entry`` where it takes the entries of its table: its names are texts."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    entries, *rest = sorted(marks, key=lambda mark: mark.args[0] not in ("form", "name", "kind", "before"))
    columns = [[{mark.args[0]: value} for value in mark.args[1]] for mark in rest]
    for values in product(*columns):
        given: dict[str, Any] = {entries.args[0]: entry}
        for value in values:
            given |= value
        yield given


def _cases() -> Iterator[Any]:
    for held in HELD:
        for name, entry in ((name, entry) for name in held.names for entry in held.entries):
            for number, given in enumerate(_others(getattr(held.of, name), entry)):
                yield pytest.param(held, name, entry, given, id=f"{name}-{entry}-{number}")


@pytest.mark.parametrize(("held", "name", "entry", "given"), [*_cases()])
def test_of_torchdatas_nodes(
    held: Held, name: str, entry: str, given: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = getattr(held.of, name)
    if held.table:
        monkeypatch.setitem(getattr(held.of, held.table), entry, held.entries[entry])
    for needed in inspect.signature(test).parameters.keys() - given.keys():
        if needed in held.fixtures:
            given = given | {needed: _within(held.of, needed)(request.getfixturevalue("tmp_path"))}
        else:
            given = given | {needed: request.getfixturevalue(needed)}
    test(**given)


def _within(module: ModuleType, fixture: str) -> Make:
    """A fixture's function."""
    found: Make = inspect.unwrap(getattr(module, fixture))
    return found


def dealt_in_turn() -> Any:
    first, second = IterableWrapper(range(24)).filter(test_L3_changed_code.good).round_robin_demux(2)
    return first.flatmap(test_L3_changed_code.gen3).mux_longest(second.flatmap(test_L3_changed_code.gen3))


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_branches_of_one_pass_go_on() -> None:
    test_L3_changed_code.test_branches_of_one_pass_go_on(dealt_in_turn)


def test_what_is_lost_before_it_is_dealt_belongs_to_no_branch() -> None:
    test_on_error_alignment.test_what_is_lost_before_it_is_dealt_belongs_to_no_branch(
        lambda dp: dp.round_robin_demux(2)
    )


def test_L7_an_on_error_of_one_branch_does_not_end_the_stream_of_all() -> None:
    test_on_error_alignment.test_L7_an_on_error_of_one_branch_does_not_end_the_stream_of_all(
        lambda dp: dp.round_robin_demux(2)
    )
