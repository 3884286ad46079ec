"""What every room uses, without knowledge of the domain: errors, files, clients of other servers, command lines."""
