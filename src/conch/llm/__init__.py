"""What no engine owns: the tensor form of a generation, chat templates, tool calls."""
