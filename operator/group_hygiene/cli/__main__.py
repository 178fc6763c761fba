"""`python -m group_hygiene.cli`."""

from group_hygiene.cli import main

if __name__ == "__main__":
    main()
