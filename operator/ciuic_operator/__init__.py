"""The operator of DeepSeekJob: gather, decide, do. `planner` decides; `observe` and `execute` are its eyes and hands."""
