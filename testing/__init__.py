"""What the tests and benches run: a sandbox of real programs, faults, worlds and benches.

sandbox  starts real brokers, API servers and further programs, and runs the demo
faults   kills, freezes and disconnects processes around a deletion
worlds   lives the same life in clusters that differ in one setting each
bench    measures, beside other programs
"""
