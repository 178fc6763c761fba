"""Connections to addresses that tenants configure.

The address is checked after the name was resolved. Every room that connects to such an address uses this one. Imports
only `process` and `errors`.

    egress  which addresses are allowed, and which certificate authorities a TLS client trusts
    post    one HTTP POST with limits on its address, its time and its response
"""
