"""What a replay of a step may rest on: what its Python read, what it does, and what is known of it (docs/capture.md)."""
