"""`conch serve`: frontends, core, backends, repositories, limits, observability, and what composes them."""
