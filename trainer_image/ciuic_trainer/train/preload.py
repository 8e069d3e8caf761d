"""Imported by the agent's fork server, for the ranks that it forks: all that the trainer imports, also what it imports late."""

from . import engine, loop

__all__ = ["loop"]

engine.preload()
