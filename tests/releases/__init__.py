"""What each release wrote, one folder each: its ledger, and the tables of its pipeline. `make` writes that of today."""
