"""The server's side of engines that run in processes of their own; `engine_child` is the other side."""
