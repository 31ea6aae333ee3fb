"""The fault matrix: {who} x {fault} x {moment}, as one table whose every cell is run."""
