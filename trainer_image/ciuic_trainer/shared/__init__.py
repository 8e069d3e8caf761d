"""What agent and trainer both know: rank environment, progress record, messages, memory tier, shard format. No torch."""
