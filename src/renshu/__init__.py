"""Renshu (練習, practice): agentic reinforcement learning for small language models."""
