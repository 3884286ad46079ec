"""What executes models. A configuration's `backend: "x"` is `conch/backends/x.py`; the contract is in `base`."""
