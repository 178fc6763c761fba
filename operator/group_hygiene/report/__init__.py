"""The report: one HTML file about the groups of a cluster.

Renders the findings that it is given: reads no table and imports no Spark. Of the operator, only `cli` imports `page`
and `charts`.

    findings    the content of the report, as records
    comparison  the numbers of a report, for a later one
    wording     names, numbers and times as text
    charts      findings as SVG
    page        findings as HTML, by page.html.j2, page.css and page.js
"""
