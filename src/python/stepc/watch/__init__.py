"""What a step may be replayed on: which of its Python was read, what it does, and what is known of it (docs/capture.md)."""
