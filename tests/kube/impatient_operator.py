"""The operator that gives up the lead after 20 s without progress."""

from group_hygiene.cli import main
from group_hygiene.controller import app

app.STUCK_S = 20.0

if __name__ == "__main__":
    main()
