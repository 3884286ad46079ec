"""`conch tunnel`: metrics across a WAN through a supervised OpenSSH forward."""
