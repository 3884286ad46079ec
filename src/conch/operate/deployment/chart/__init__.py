"""The Helm chart's generated files, from the typed values: values.yaml, values.schema.json, Chart.yaml, the page."""
