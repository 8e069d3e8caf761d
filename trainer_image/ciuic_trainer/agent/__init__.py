"""Process 1 of every rank pod: starts, watches and stops the ranks, keeps their checkpoints, speaks with the operator."""
