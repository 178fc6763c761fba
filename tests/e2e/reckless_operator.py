"""The operator with the judgement that simple hygiene scripts have: a group that is Empty is unused.

Everything else is the real thing, with its command line, so what it destroys is what the checks protect.
"""

from group_hygiene.cli import main
from group_hygiene.engine import checks
from group_hygiene.engine.checks import offsets, used
from group_hygiene.spec.policy import Action

# offsets_known only has the offsets read, which the backup and the comparison before a deletion need.
checks.CHAINS = dict.fromkeys(Action, (used.not_empty, offsets.offsets_known))

if __name__ == "__main__":
    main()
