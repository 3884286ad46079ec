"""Models that are functions or classes with annotations, as `conch.model` declares them."""
