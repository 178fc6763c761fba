"""Restores: commit offsets again from a backup in the ledger.

Like `reconcile`, it asks the guard right before each change, and a partition without evidence is left alone. Does not
import Kubernetes.

    restorable   which offsets of a backup may be committed, the results, and the GroupRestore object; pure
    restoration  reads, decides, commits and verifies, group by group
"""
