"""Command lines of all commands: parser, values of flags, files, waiting."""
