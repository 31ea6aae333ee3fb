"""Trainings inside other people's trainers, each killed in mid-epoch and taken up again."""
