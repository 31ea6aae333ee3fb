"""Real trainings inside real trainers, killed and resumed: `make test-trainers`, in an environment of its own."""
