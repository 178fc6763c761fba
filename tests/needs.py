"""Which tests `make test` leaves to `make test-extra`.

Those that take long, which `_LONG` lists; most show by an operator, by a command, or in more cases, what others hold.
And those that need more than the programs that `make test` prepares: kube-apiserver, etcd and the newest Kafka.
They are found by the code that a test can reach by names: its function, its fixtures and parameters, and what these
name in turn. Where that finds too little, the test fails in `make test`, as `sandbox.cache` refuses all that is not
basic: mark it `extra`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest

from sandbox.cache import basic_functions, cached
from sandbox.kafka import KafkaCluster
from sandbox.kafka.jars import VERSIONS

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("bench", "docsite", "faults", "sandbox", "tests", "worlds")
_FOLDERS = tuple(f"{_ROOT / name}/" for name in _PACKAGES)
_TESTS = f"{_ROOT / 'tests'}/"
# Files of a folder, or tests of a file.
_LONG = {
    "e2e": "alerts announcements connection_wide evidence group_keep lag marks metrics neighbours restart rights "
    "tenancy",
    "e2e/operator": "a_name_that_can_be_none_is_refused an_object_that_is_being_deleted_does_nothing "
    "an_unreachable_broker_disturbs_no_other_connection columns_of_kubectl_get denied_permissions_are_named "
    "few_status_writes_while_nothing_changes from_no_secret_to_ready metrics_and_probes "
    "objects_of_users_stay_as_they_are oddities_stop_no_policy patterns_that_select_nothing_are_named "
    "secret_that_may_not_be_read",
    "kafka": "codecs fair_scans incomplete large_groups leader_epochs left_groups long_ids lost_records msk programs "
    "services slices slow window",
    "kafka/evidence": "bad_tables_keep_everything tables_are_read_again_before_a_deletion",
    "kafka/foreign_answers": "a_small_batch_of_much_is_unpacked_to_a_bound a_token_endpoint_has_bytes_and_time "
    "brokers_have_bytes_and_time",
    "kafka/lag": "who_left_records_unread",
    "kafka/ledger_writer": "an_expired_id_is_not_taken_for_another_writer",
    "kafka/new_groups": "a_share_group_is_what_kafka_says_it_is",
    "kafka/read_back": "a_transaction_that_ends_too_late",
    "kafka/reconcile": "many_policies_cost_one_list",
    "kafka/security": "a_client_certificate_lets_in a_run_goes_as_far_as_its_permissions",
    "kube": "admission api_trouble install_yaml",
    "kube/crds": "a_narrower_list_that_is_applied_is_the_list",
    "kube/guard": "a_field_that_the_crd_lost_makes_an_object_unusable an_older_crd_ends_the_run",
    "kube/judge": "the_judge_says_what_the_api_server_says",
    "cli": "codecs new_cluster several_connections watch",
    "cli/properties": "the_error_converts_a_store",
    "sandbox": "sandbox_java",
    "unit/access": "selector",
    "unit/codecs": "a_large_batch_takes_bounded_memory hostile_bytes_take_bounded_memory",
    "unit/health": "connections_of_the_last_moment_are_closed",
    "unit/hostile_tables": "hostile_tables_take_no_more_than_their_share others_are_served_meanwhile",
    "unit/patterns": "covers_is_never_wrong placeholders_cost_little",
    "unit/report_page": "names_are_text_wherever_they_stand the_same_findings_make_the_same_page",
    "unit/run_histories": "at_any_moment_an_exchange_fails at_any_moment_something_happens the_wait_begins_again",
}
LONG_ONES = {f"{folder}/{name}" for folder, names in _LONG.items() for name in names.split()}


def is_extra(item: pytest.Item) -> bool:
    """Whether `make test` leaves it out, unless it is slow anyway."""
    return not LONG_ONES.isdisjoint(places(item)) or needs_more(item)


def places(item: pytest.Item) -> tuple[str, str]:
    """Its file and its test as `_LONG` names them: e2e/alerts, and e2e/alerts/thresholds."""
    file = f"{item.path.parent.name}/{item.path.stem.removeprefix('test_')}"
    return file, f"{file}/{getattr(item, 'originalname', item.name).removeprefix('test_')}"


def needs_more(item: pytest.Item) -> bool:
    """Whether this test can reach anything else of the cache, or a broker of another version."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = (definitions[-1].func for definitions in item._fixtureinfo.name2fixturedefs.values())
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    found = set[Any]().union(*map(_reached, _parts([item.function, *fixtures, *parameters])))
    return cached in found or (KafkaCluster in found and not found.isdisjoint(VERSIONS[1:]))


@cache
def _reached(start: Any) -> frozenset[Any]:
    found, todo = set[Any](), [start]
    while todo:
        if (part := todo.pop()) not in found:
            found.add(part)
            todo += _named(part)
    return frozenset(found)


@cache
def _named(part: Any) -> tuple[Any, ...]:
    """The functions, classes and old versions that this one names."""
    if part is cached or part in basic_functions:
        return ()
    if isinstance(part, type):
        return tuple(_parts([*part.__mro__, *vars(part).values()]))
    if not isinstance(part, FunctionType) or not part.__code__.co_filename.startswith(_FOLDERS):
        return ()
    in_tests = part.__code__.co_filename.startswith(_TESTS)
    codes = list(_codes(part.__code__))
    names = {name for code in codes for name in code.co_names}
    values = [part.__globals__[name] for name in names if name in part.__globals__]
    modules = [value for value in values if isinstance(value, ModuleType)]
    values += [vars(module)[name] for module in modules for name in names if name in vars(module)]
    values += [cell.cell_contents for cell in part.__closure__ or () if _is_filled(cell)]
    values += [part.__wrapped__] if hasattr(part, "__wrapped__") else []
    values += [value for code in codes for value in code.co_consts]
    named = _parts(value for value in values if value is not VERSIONS)
    # Only a test chooses a version.
    return tuple(each for each in named if in_tests or not isinstance(each, str))


def _parts(values: Iterable[Any]) -> Iterator[Any]:
    """Of values, also in containers: functions, classes, those of objects, and the strings that are old versions."""
    for value in values:
        if type(value).__module__.partition(".")[0] in _PACKAGES:
            yield type(value)
        match value:
            case str():
                if value in VERSIONS[1:]:
                    yield value
            case type() | FunctionType():
                yield value
            case staticmethod() | classmethod() | MethodType():
                yield value.__func__
            case property(fget=function) | cached_property(func=function) | partial(func=function):
                yield from _parts([function])
            case Mapping():
                yield from _parts([*value.keys(), *value.values()])
            case tuple() | list() | set() | frozenset():
                yield from _parts(value)
            case object(__wrapped__=function):
                yield from _parts([function])


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _codes(value)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
