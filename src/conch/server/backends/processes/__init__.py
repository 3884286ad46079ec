"""Child processes: fork server, launch, supervision, confinement."""
