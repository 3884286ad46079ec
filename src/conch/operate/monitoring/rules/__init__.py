"""Recording and alerting rules, each alert with a proof: series that fire it and series that nearly do."""
