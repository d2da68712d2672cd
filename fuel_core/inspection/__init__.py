"""What can be said without weights: a model's plan, and the health of this installation."""
