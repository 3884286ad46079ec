"""Shared by the server, model processes and engine processes: frames, arena, memory guard, process attributes."""
