"""Model repositories: find models, read their configurations, and fetch those that lie elsewhere."""
