"""Every reason of statuses, Events, metrics and the command line.

The names are part of the interface: `docs/reasons.md` documents each; a test fails if one is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from group_hygiene.errors import HygieneError

# A group is not deleted: it may be needed.
PROTECTED: Final = "Protected"
OWN_GROUP: Final = "OwnGroup"
ID_TOO_LONG: Final = "IdTooLong"
CONNECT: Final = "ConnectGroup"
STREAMS: Final = "StreamsGroup"
STREAMS_STATE: Final = "StreamsStateExists"
MIRROR_MAKER: Final = "MirrorMakerTarget"
FAILOVER_TARGET: Final = "FailoverTarget"
SHARE: Final = "ShareGroup"
CLAIMED: Final = "ClaimedByResource"
KEEP_REQUESTED: Final = "KeepRequested"
REAPPEARED: Final = "Reappeared"

# A group is not deleted: it does not match the policy, or not yet.
DEAD: Final = "Dead"
NOT_EMPTY: Final = "NotEmpty"
SIMPLE: Final = "SimpleGroup"
HAS_OFFSETS: Final = "HasOffsets"
NO_OFFSETS: Final = "NoOffsets"
TOPICS_EXIST: Final = "TopicsExist"
TOO_RECENT: Final = "TooRecent"
EXPIRES_FIRST: Final = "ExpiresFirst"
EXPIRES_LATER: Final = "ExpiresLater"
CAUGHT_UP: Final = "CaughtUp"
NOT_STABLE: Final = "NotStable"
SUBSCRIBED: Final = "Subscribed"
LAG_BELOW: Final = "LagBelow"
IN_RANGE: Final = "InRange"

# Of these, the reasons of groups whose evidence was read, and that do not meet what the policy asks, or not yet. Their
# messages concern only the policy and the group, as tenants see them.
UNMET: Final = frozenset(
    {
        *(HAS_OFFSETS, NO_OFFSETS, TOPICS_EXIST, TOO_RECENT, EXPIRES_FIRST, EXPIRES_LATER, CAUGHT_UP, LAG_BELOW),
        *(IN_RANGE, NOT_STABLE, SUBSCRIBED),
    }
)

# A group is not deleted: evidence is missing.
OFFSETS_UNKNOWN: Final = "OffsetsUnknown"
NO_START_OFFSET: Final = "NoStartOffset"
TOPICS_UNKNOWN: Final = "TopicsUnknown"
LAG_UNKNOWN: Final = "LagUnknown"
SUBSCRIPTION_UNKNOWN: Final = "SubscriptionUnknown"
RECORD_UNREADABLE: Final = "LedgerRecordUnreadable"
BACKUP_NOT_READABLE: Final = "BackupNotReadable"
EVIDENCE_NOT_CONFIGURED: Final = "EvidenceNotConfigured"
EVIDENCE_MISSING: Final = "EvidenceMissing"
EVIDENCE_STALE: Final = "EvidenceStale"
EVIDENCE_INCOMPLETE: Final = "EvidenceIncomplete"
EVIDENCE_OF_ANOTHER_CLUSTER: Final = "EvidenceOfAnotherCluster"
EVIDENCE_WENT_BACK: Final = "EvidenceWentBack"
EVIDENCE_UNREADABLE: Final = "EvidenceUnreadable"

# The outcome of a group that was due.
DELETED: Final = "Deleted"
OFFSETS_DELETED: Final = "OffsetsDeleted"
BECAME_ACTIVE: Final = "BecameActive"
RECENTLY_ACTIVE: Final = "RecentlyActive"
CLOCK_UNKNOWN: Final = "ClockUnknown"
CHANGED: Final = "Changed"
GONE: Final = "Gone"
PENDING_TRANSACTION: Final = "PendingTransaction"
DENIED: Final = "AuthorizationDenied"
DELETE_FAILED: Final = "DeleteFailed"
POLICY_CHANGED: Final = "PolicyChanged"
STOPPING: Final = "Stopping"
NOT_LEADER: Final = "NotLeader"
INTERRUPTED: Final = "Interrupted"
DRY_RUN: Final = "DryRun"

# A whole run deletes nothing.
SNAPSHOT_INCOMPLETE: Final = "SnapshotIncomplete"
OFFSETS_TOPIC_GROWN: Final = "OffsetsTopicGrown"
LIMIT_EXCEEDED: Final = "LimitExceeded"
TOTAL_UNKNOWN: Final = "TotalUnknown"
CLUSTER_TOO_SMALL: Final = "ClusterTooSmall"
OUTSIDE_WINDOW: Final = "OutsideWindow"
TOPICS_HIDDEN: Final = "TopicsHidden"
CLUSTER_CHANGED: Final = "ClusterChanged"
CLOCK_SKEW: Final = "ClockSkew"
LEDGER_UNAVAILABLE: Final = "LedgerUnavailable"
LEDGER_RESET: Final = "LedgerReset"
LEDGER_OWNED: Final = "LedgerOwnedByAnother"
LEDGER_CHANGED: Final = "LedgerChanged"
FEW_REPLICAS: Final = "FewReplicas"
TERMINATING: Final = "Terminating"
CRD_OUTDATED: Final = "CRDOutdated"
LEDGER_FENCED: Final = "LedgerFenced"

# The outcome of a restore: of a group, or of one of its partitions.
RESTORED: Final = "Restored"
PARTLY_RESTORED: Final = "PartlyRestored"
WOULD_RESTORE: Final = "WouldRestore"
VERIFIED: Final = "Verified"
RAN_BEFORE: Final = "RanBefore"
ALREADY_THERE: Final = "AlreadyThere"
ALREADY_COMMITTED: Final = "AlreadyCommitted"
GROUP_ACTIVE: Final = "GroupActive"
NO_BACKUP: Final = "NoBackup"
BACKUP_INCOMPLETE: Final = "BackupIncomplete"
NOT_RESTORABLE: Final = "NotRestorable"
TOPIC_MISSING: Final = "TopicMissing"
TOPIC_RECREATED: Final = "TopicRecreated"
TOPIC_IDENTITY_UNKNOWN: Final = "TopicIdentityUnknown"
OUT_OF_RANGE: Final = "OutOfRange"
COMMIT_FAILED: Final = "CommitFailed"

# The state of a GroupKeep, or of one of its groups.
KEPT: Final = "Kept"
GROUP_UNKNOWN: Final = "GroupUnknown"
GROUP_UNREADABLE: Final = "GroupUnreadable"
ALREADY_DELETED: Final = "AlreadyDeleted"
BEING_DELETED: Final = "BeingDeleted"
KEEP_ENDED: Final = "KeepEnded"
TOO_MANY_KEEPS: Final = "TooManyKeeps"
TOO_MANY_CHANGES: Final = "TooManyChanges"

# Conditions.
SUCCEEDED: Final = "Succeeded"
CONNECTED: Final = "Connected"
SUSPENDED: Final = "Suspended"
NOT_BLOCKED: Final = "NotBlocked"
CONNECTION_NOT_FOUND: Final = "ConnectionNotFound"
CONNECTION_NOT_READY: Final = "ConnectionNotReady"
CROSS_NAMESPACE: Final = "CrossNamespaceRefused"
ACTION_NOT_GRANTED: Final = "ActionNotGranted"
ACCESS_LIMITED: Final = "AccessLimited"
RECEIVER_NOT_FOUND: Final = "ReceiverNotFound"
RECEIVER_FAILED: Final = "ReceiverFailed"
RECEIVER_UNCONFIRMED: Final = "ReceiverUnconfirmed"
RECEIVER_REFUSED: Final = "ReceiverRefused"
ALL_DELIVERED: Final = "AllDelivered"
NO_GROUPS_MATCHED: Final = "NoGroupsMatched"
TOO_FEW_GROUPS: Final = "TooFewGroups"
MAY_WARN_LATE: Final = "MayWarnLate"
LEDGER_READY: Final = "LedgerReady"
EVIDENCE_READY: Final = "EvidenceReady"
TOPICS_VISIBLE: Final = "TopicsVisible"
TOPICS_ATTESTED: Final = "TopicsAttested"
PATTERNS_MATCH: Final = "PatternsMatch"
PATTERNS_UNUSED: Final = "PatternsUnused"
DOT_BEFORE_STAR: Final = "DotBeforeStar"
INVALID_SPEC: Final = "InvalidSpec"
BROKERS_UNREACHABLE: Final = "BrokersUnreachable"
TLS_FAILED: Final = "TLSFailed"
IDENTITY_NOT_ALLOWED: Final = "IdentityNotAllowed"
AUTHENTICATION_FAILED: Final = "AuthenticationFailed"
SECRET_NOT_FOUND: Final = "SecretNotFound"
SECRET_KEY_MISSING: Final = "SecretKeyMissing"
SECRET_INVALID: Final = "SecretInvalid"
SECRET_FORBIDDEN: Final = "SecretForbidden"
API_SERVER_ERROR: Final = "ApiServerError"
TOO_MANY_GROUPS: Final = "TooManyGroups"
MEMORY_EXHAUSTED: Final = "MemoryExhausted"
INTERNAL_ERROR: Final = "InternalError"

# Events that are not a condition's reason.
GROUPS_MATCHED: Final = "GroupsMatched"
GROUPS_MARKED: Final = "GroupsMarked"
GROUPS_DELETED: Final = "GroupsDeleted"
STATUS_REFUSED: Final = "StatusRefused"


def all_reasons() -> frozenset[str]:
    """Every documented reason, as users see it."""
    return frozenset(value for name, value in globals().items() if name.isupper() and isinstance(value, str))


# Why an action is not done, for statuses, Events, metrics and the command line. No I/O.


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a group is not deleted, a run or restore does not proceed, or a message is not delivered.

    reason: a constant of `reasons`, part of the interface. message: for people; says what to do, if possible.

    An error of a broker is a `groups.Fault`. Its code is Kafka's name of one of more than a hundred errors, and the
    reason for it depends on the request: GROUP_ID_NOT_FOUND is Gone right before a deletion, and Deleted after a
    DeleteGroups request without an answer. With two types, mypy finds each place where a code of Kafka would reach a
    status as if it were a documented reason.
    """

    reason: str
    message: str

    @classmethod
    def of(cls, error: HygieneError) -> Refusal:
        return cls(error.reason, str(error))
