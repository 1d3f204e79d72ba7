"""Reading a manifest: syntax, positions, checks, and what trainers say of their flags."""
