"""Which tests `make test` leaves to `make test-extra`.

Those that take long; most show by an operator, by a command, or in more cases, what others hold. And those that need
more than the programs that `make test` prepares: kube-apiserver, etcd and the newest Kafka. A test that is missing here
fails in `make test`, as `testing.sandbox.cache` refuses all that is not basic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from testing.sandbox.kafka.jars import VERSIONS

# What takes long: files of a folder, or tests of a file.
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
# What needs further programs: as in `_LONG`. Parameters that are old versions of Kafka need no entry.
_MORE = {
    "kafka": "mirror_maker",
    "kafka/offsets_log": "damaged_records_say_nothing_that_kafka_does_not_read_in_them "
    "every_sample_says_to_kafka_what_it_says_to_us",
    "kube": "chart chart_values",
    "kube/documented_objects": "argo_cd_would_show_an_edit git_and_a_second_manager_stay_quiet",
    "kube/gitops": "a_script_that_is_wrong_is_seen flux_judges_objects_as_argo_cd_does health_by_conditions "
    "health_of_what_the_operator_wrote only_objects_that_wait_for_a_user_are_degraded",
    "kube/ready": "a_connection a_keep a_policy a_restore",
    "kube/strimzi": "the_documented_user_is_one_of_todays_strimzi the_group_of_todays_connector_is_named",
    "prometheus/dashboard": "grafanas_types_read_it_whole queries_ask_for_what_is_there the_types_are_strict "
    "variables_ask_for_what_is_there",
    "prometheus/rules": "each_alert_has_both_cases promtool_takes_the_rules recorded_series_are_used "
    "rules_name_metrics_and_labels_that_exist",
    "unit/needs": "a_program_that_is_not_prepared_is_refused",
    "unit/workflows": "actionlint_takes_them the_page_of_the_package the_released_chart_asks_for_the_released_images",
}
LISTED = {f"{folder}/{name}" for rows in (_LONG, _MORE) for folder, names in rows.items() for name in names.split()}


def is_extra(item: pytest.Item) -> bool:
    """Whether `make test` leaves it out, unless it is slow anyway."""
    file = f"{item.path.parent.name}/{item.path.stem.removeprefix('test_')}"
    test = f"{file}/{getattr(item, 'originalname', item.name).removeprefix('test_')}"
    parameters = (
        item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    )
    return (
        file in LISTED or test in LISTED or any(each in VERSIONS[1:] for value in parameters for each in _texts(value))
    )


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """The strings in a parameter, and in its fields if it is a record."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each, depth)
    elif depth < 2 and hasattr(value, "__dict__") and not isinstance(value, type):
        for each in vars(value).values():
            yield from _texts(each, depth + 1)
