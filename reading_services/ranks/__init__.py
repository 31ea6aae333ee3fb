"""What the reading services of several ranks agree on."""
