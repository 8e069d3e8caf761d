"""`kubectl deepseek`: what a researcher types to submit a job, watch it and read its logs."""
