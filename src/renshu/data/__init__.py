"""What stages learn from: dialogues, preferences and stored trajectories, read leniently, never silently."""
