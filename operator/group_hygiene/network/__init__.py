"""Connections to addresses that tenants configure.

The address is checked after the name was resolved. Every room that connects to such an address uses this one. Imports
only `process` and `errors`.

    egress       which addresses are allowed
    post         one HTTP POST with limits on its address, its time and its response
    authorities  the certificate authorities that a TLS client trusts
"""
