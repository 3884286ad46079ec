"""How results are shown and kept: the certificate, tables for terminals and Markdown, CSV, HTML, comparisons."""
