"""Tests of ``torchpipe.DataLoader``: beside torch's own loader, and against whatever may befall it."""
