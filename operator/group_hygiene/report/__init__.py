"""The report: one HTML file about the groups of a cluster.

Renders the findings that it is given: reads no table and imports no Spark. Of the operator, only `cli` imports `page`.

    findings    the content of the report, as records; its names, numbers and times as text; numbers for a later report
    page        findings as HTML with charts, by page.html.j2, page.css and page.js
"""
