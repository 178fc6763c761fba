"""All scenarios, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from testing.faults import (
    answers,
    bad_evidence,
    broken_brokers,
    broken_ledgers,
    commands,
    cut_off,
    guards,
    hostile,
    leaders,
    races,
    restores,
    tenants,
    unfinished,
)
from testing.faults.stage import Stage


@dataclass(frozen=True)
class Scenario:
    """One function of these modules; its docstring says what must hold."""

    run: Callable[[Stage], None]

    @property
    def name(self) -> str:
        return self.run.__name__.replace("_", "-")

    @property
    def sentence(self) -> str:
        return (self.run.__doc__ or "").partition("\n")[0]


# The longest first, so that the run does not end with a long one.
SCENARIOS = tuple(
    map(
        Scenario,
        (
            hostile.hostile_objects,
            tenants.random_tenants,
            races.many_at_once,
            commands.killed_commands,
            cut_off.api_server_down,
            cut_off.leader_without_kafka,
            broken_brokers.broker_dies_at_delete,
            leaders.leaders_move,
            broken_brokers.one_broker_of_three_is_dead,
            cut_off.leader_without_api_server,
            races.comes_back,
            races.window_closes_during_a_run,
            races.kept_during_a_run,
            broken_brokers.broker_hangs_at_delete,
            answers.answers_to_parts_that_prove_nothing,
            answers.answers_that_prove_nothing,
            broken_brokers.topic_hidden,
            broken_brokers.ledger_denied,
            cut_off.idle_leader_without_api_server,
            cut_off.leader_without_kafka_dies,
            cut_off.late_delete,
            cut_off.very_late_delete,
            cut_off.lost_answer,
            broken_ledgers.ledger_deleted,
            broken_ledgers.ledger_recreated,
            broken_ledgers.ledger_emptied,
            broken_ledgers.ledger_compacted,
            broken_ledgers.ledger_unreadable,
            broken_ledgers.ledger_of_a_later_version,
            broken_ledgers.transaction_left_open,
            bad_evidence.evidence_lost_amid_a_run,
            bad_evidence.used_after_the_tables_end,
            bad_evidence.evidence_mended,
            races.changed_after_the_scan,
            races.joined_at_the_last_moment,
            races.pending_transaction,
            races.clock_steps,
            restores.frozen_in_a_restore,
            restores.stopped_at_a_terminal,
            unfinished.policy_suspended_after_a_crash,
            unfinished.policy_deleted_after_a_crash,
            unfinished.restored_after_a_crash,
            unfinished.outcome_unwritten,
            unfinished.two_connections_to_one_cluster,
            guards.frozen_before_delete,
            guards.changed_while_the_ledger_is_slow,
            guards.marked_late,
            guards.killed_at_delete,
            guards.more_are_due_than_a_run_may_delete,
            guards.plainly,
            guards.grace_not_over,
            guards.too_many_are_due,
        ),
    )
)
