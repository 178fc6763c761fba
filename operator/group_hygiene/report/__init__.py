"""The report: one HTML file about the groups of a cluster. Draws what it is given; reads no table, knows no Spark."""
