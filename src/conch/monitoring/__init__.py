"""What monitoring systems are told about Conch: rules with proofs, dashboards, translations. No I/O, no clock."""
