"""Environments and rewards written for other libraries, accepted unchanged."""
