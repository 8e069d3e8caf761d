"""The built-in trainer: one rank of DeepSpeed ZeRO-3 on a DeepSeek-V3 architecture model. Never imports the agent."""
