"""KServe: runtimes that serve with Conch, and services that use them, as objects for deploy/kserve."""
