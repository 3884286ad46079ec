"""What executes models. `backend: "x"` in a configuration is the package `x` here; `base` has the contract."""
