"""A finished run for others: packed as one archive, unpacked with care, trained again."""
