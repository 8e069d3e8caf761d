"""What runs in a rank pod: the agent (process 1) and the trainer, and in `shared` what both know."""
